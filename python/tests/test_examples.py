"""The examples, and that the documentation has each of them."""

import pathlib
import re
import subprocess
import sys
import unittest

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
EXAMPLES = REPOSITORY / "examples/python"

OUTPUT = {
    "run": "0 0 this is rank 0 of 2\n1 0 this is rank 1 of 2\n",
    "failure": re.compile(r"rank 1 \(.*\) exited with code 3.*\n\{0: 143, 1: 3\} \{0: '', 1: 'careful\\n'\}\n"),
    "events": {"0 ready\n", "1 ready\n", "0 got\n", "1 got hello\n"},
    "together": "launch 0\nlaunch 1\nlaunch 2\n",
    "programs": "master\nworker 1\nworker 2\n",
    "timeline": re.compile(r"timing of .*: 2 ranks on 2 hosts(?s:.*)launch.html launch.json\n"),
    "pi": "3.141593\n",
    "map": "2147483647 46340\n2147483648 46340\n2147483659 46340\n",
    "restart": re.compile(r"lost: rank \d \(.*\) exited with code 3.*\nsizes: \[2, 2\]\n"),
    "spawn": "{0: 0, 1: 0, 2: 0}\nready\nsum 6\n",
    "state": "[499500, 499500]\n",
}


class Examples(unittest.TestCase):
    def test_each_prints_what_it_should(self):
        self.assertEqual({path.stem for path in EXAMPLES.glob("*.py")}, set(OUTPUT))
        for name, expected in OUTPUT.items():
            with self.subTest(name):
                done = subprocess.run([sys.executable, EXAMPLES / f"{name}.py"], capture_output=True, text=True, timeout=60)
                self.assertEqual(done.returncode, 0, done.stderr)
                if isinstance(expected, re.Pattern):
                    self.assertRegex(done.stdout, expected)
                elif isinstance(expected, set):
                    self.assertEqual(set(done.stdout.splitlines(keepends=True)), expected)
                else:
                    self.assertEqual(done.stdout, expected)

    def test_documentation_has_each(self):
        page = (REPOSITORY / "docs/python.md").read_text()
        for name in OUTPUT:
            self.assertIn(f"(../examples/python/{name}.py)", page)


if __name__ == "__main__":
    unittest.main()
