"""`python -m spark_sink` is `spark-sink`."""

from spark_sink.cli import main

if __name__ == "__main__":
    main()
