"""`python -m spark_sink`: the same as the command `spark-sink`."""

from spark_sink.cli import main

if __name__ == "__main__":
    main(prog_name="spark-sink")
