//! Allocators that run outside the launch.

use crate::{Run, repository};

/// Starts an allocator, which listens on `$1`, before the rest of the command, and ends it afterwards.
pub fn beside(run: Run, allocator: &str, socket: &str) -> Run {
    let script = format!(
        r#"socket=$1; shift
        {allocator} &
        allocator=$!
        i=0
        until [ -S "$socket" ]; do
            i=$((i + 1))
            if [ $i = 600 ]; then echo "no allocator" >&2; exit 99; fi
            sleep 0.05
        done
        "$@"
        code=$?
        kill $allocator 2>/dev/null
        wait $allocator 2>/dev/null
        exit $code"#
    );
    run.under(["sh", "-c", &script, "sh", socket])
}

/// The allocator of the examples, with these nodes and slots.
pub fn pool(nodes: &str) -> String {
    let example = repository().join("examples/allocator.py");
    let example = example.display();
    format!("python3 {example} \"$socket\" {nodes}")
}
