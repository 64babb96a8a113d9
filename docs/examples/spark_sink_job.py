"""`spark-sink` as a job of spark-submit, which takes nothing but a file that ends in .py.

    spark-submit --master spark://HOST:7077 spark_sink_job.py run --url URL --tables DIRECTORY

Master, memory and settings are spark-submit's; what comes after the file is for `spark-sink`.
"""

from spark_sink.cli import main

if __name__ == "__main__":
    main(prog_name="spark-sink")
