//! A network namespace of its own for each test: an unnamed one, that ends with the test's thread.
//! Needs root; fails, never skips, where it cannot be made.

use std::process::Command;

use nix::sched::{CloneFlags, unshare};

/// Runs the test on a thread in a fresh network namespace with `lo` up.
pub(crate) fn in_namespace(test: impl FnOnce() + Send + 'static) {
    let thread = std::thread::spawn(move || {
        // With descriptors of its own, too: a program that another test starts copies those of its thread until it runs, and
        // a socket that owns tables would live on in the copy.
        unshare(CloneFlags::CLONE_NEWNET | CloneFlags::CLONE_FILES)
            .expect("a network namespace needs root");
        run("ip", &["link", "set", "lo", "up"]);
        test();
    });
    if let Err(panic) = thread.join() {
        std::panic::resume_unwind(panic);
    }
}

/// Runs a program in the namespace of this thread; its output, or a panic with what it said.
pub(crate) fn run(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program)
        .args(arguments)
        .output()
        .unwrap_or_else(|error| panic!("{program}: {error}"));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "{program} {arguments:?}: {}\n{text}{errors}",
        output.status
    );
    text
}
