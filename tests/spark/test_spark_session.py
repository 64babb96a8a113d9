"""The Python processes that Spark starts: this Python, with its installed pyspark."""

import json
import os
import subprocess
import sys
from pathlib import Path

from spark_sink.run import spark_session


def test_the_path_loses_the_zips_of_spark_and_nothing_else(tmp_path: Path) -> None:
    program = spark_session._write_python(tmp_path)
    code = "import json, os, sys; print(json.dumps([os.environ['PYTHONPATH'], *sys.argv[1:]]))"
    zips = "/s/lib/pyspark.zip:{}/s/lib/py4j-0.10.9.9-src.zip:{}"
    for options, left in (
        (None, ""),
        (zips.format("", "/s/jars/spark-core_2.13-4.3.0.jar"), ""),
        (zips.format("/a b/*:", "/c.zip"), "/a b/*:/c.zip"),
        ("/my/pyspark.zip.d:/pyspark", "/my/pyspark.zip.d:/pyspark"),
    ):
        environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        if options is not None:
            environ["PYTHONPATH"] = options
        command = [program, "-S", "-c", code, "an argument", "a:b", "*"]
        result = subprocess.run(command, env=environ, capture_output=True, text=True, check=True)
        assert json.loads(result.stdout) == [left, "an argument", "a:b", "*"]


def test_a_python_whose_path_has_a_quote_is_started(tmp_path, monkeypatch):
    real = tmp_path / "it's" / "python"
    real.parent.mkdir()
    real.write_text('#!/bin/sh\necho started "$@"\n')
    real.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(real))
    program = spark_session._write_python(tmp_path)
    result = subprocess.run([program, "-m", "x"], capture_output=True, text=True, check=True)
    assert result.stdout == "started -m x\n"
