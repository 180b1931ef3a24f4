"""Shows why a launch has failed, and what its ranks have printed."""

import wireup

# Rank 1 fails; the launch then terminates rank 0.
script = """
[ $WIREUP_RANK = 1 ] || exec sleep 60
echo careful >&2
exit 3
"""
try:
    wireup.run(["sh", "-c", script], n=2)
except wireup.LaunchFailed as failure:
    print(failure)
    print(failure.result.exit_codes, failure.result.stderr)
