"""Shows why a launch has failed, and what its ranks have printed."""

import wireup

try:
    wireup.run(["sh", "-c", "echo careful >&2; exit $WIREUP_RANK"], n=2)
except wireup.LaunchFailed as failure:
    print(failure)
    print(failure.result.exit_codes, failure.result.stderr)
