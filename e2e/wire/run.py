"""Runs the tests here, or those whose names have one of the arguments in them, and ends with a line of counts like
cargo's, which `e2e/run test` adds up."""

import pathlib
import sys
import unittest

loader = unittest.TestLoader()
loader.testNamePatterns = [f"*{part}*" for part in sys.argv[1:]] or None
suite = loader.discover(str(pathlib.Path(__file__).parent))
result = unittest.TextTestRunner(stream=sys.stdout, verbosity=2).run(suite)
failed = len(result.failures) + len(result.errors)
print(f"test result: {'FAILED' if failed else 'ok'}. {result.testsRun - failed} passed; {failed} failed;")
sys.exit(1 if failed else 0)
