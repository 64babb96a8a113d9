"""Events whose bytes in the log are not what was written: detected, withheld, mended."""
