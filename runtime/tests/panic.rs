//! What a panic does to a program: the test starts itself again as that program.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

use std::os::unix::process::ExitStatusExt;
use std::process::Command;

use onehop_runtime::log::{Format, init};

const PROGRAM: &str = "ONEHOP_TEST_PANICS";
const SIGABRT: i32 = 6;

#[test]
fn a_panic_of_one_thread_is_logged_and_ends_the_program() {
    if std::env::var_os(PROGRAM).is_some() {
        init("info", Format::Json, ("install", "i")).unwrap();
        let part = std::thread::spawn(|| panic!("on purpose"));
        // The rest of the program would go on.
        assert!(part.join().is_err());
        return;
    }
    let output = Command::new(std::env::current_exe().unwrap())
        .env(PROGRAM, "1")
        .output()
        .unwrap();
    assert_eq!(output.status.signal(), Some(SIGABRT), "{output:?}");
    let log = String::from_utf8(output.stderr).unwrap();
    assert!(log.contains("on purpose"), "{log}");
}
