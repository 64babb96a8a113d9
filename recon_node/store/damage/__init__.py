"""Events whose bytes in the log are not what was written: found, kept back, mended."""
