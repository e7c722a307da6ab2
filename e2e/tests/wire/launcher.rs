//! Who installs the judges, and when (AZ-507): the launcher with programs that only write down how they were called.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

const LAUNCHER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/run");
const CI: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../.ci/run");

fn program(folder: &Path, name: &str, does: &str) {
    let path = folder.join(name);
    let text = format!("#!/bin/sh\necho \"{name} $*\" >>\"$CALLS\"\n{does}\n");
    std::fs::write(&path, text).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
}

/// Runs a part in a copy of what the launcher needs; the programs that it called.
fn calls_of(part: &str) -> Vec<String> {
    let name = format!("onehop-launcher-{}-{part}", std::process::id());
    let root: PathBuf = std::env::temp_dir().join(name);
    let (programs, wire) = (root.join("programs"), root.join("e2e/wire"));
    for folder in [&programs, &wire] {
        std::fs::create_dir_all(folder).unwrap();
    }
    std::fs::copy(LAUNCHER, root.join("e2e/run")).unwrap();
    std::fs::write(wire.join("requirements.txt"), "judge==1\n").unwrap();
    program(
        &programs,
        "cargo",
        "echo 'test result: ok. 1 passed; 0 failed;'",
    );
    program(&programs, "id", "echo 0");
    for judge in ["nft", "conntrack", "ip"] {
        program(&programs, judge, "");
    }
    // The Python of an environment is one of these, too.
    let venv = "for last; do :; done; [ \"$2\" = venv ] && mkdir -p \"$last/bin\" && cp \"$0\" \"$last/bin/python\"; exit 0";
    program(&programs, "python3", venv);
    let calls = root.join("calls");
    let ran = Command::new(root.join("e2e/run"))
        .args(["test", part])
        .env("CALLS", &calls)
        .env("PATH", format!("{}:/usr/bin:/bin", programs.display()))
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&ran.stderr).into_owned();
    assert!(ran.status.success(), "{part}: {said}");
    let text = std::fs::read_to_string(&calls).unwrap();
    std::fs::remove_dir_all(&root).unwrap();
    text.lines().map(str::to_owned).collect()
}

#[test]
fn az507_the_judges_have_a_part_of_their_own_and_nobody_else_installs_them() {
    let unit = calls_of("unit");
    assert!(
        unit.iter().any(|call| call.starts_with("cargo test")),
        "{unit:#?}"
    );
    let python = unit.iter().find(|call| call.starts_with("python3"));
    assert_eq!(python, None, "AZ-507: developers need no judge");
    let wire = calls_of("wire");
    let at = |wanted: &str| wire.iter().position(|call| call.contains(wanted));
    let (installed, judged) = (at("pip install"), at("--test wire"));
    assert!(
        installed.is_some() && installed < judged,
        "AZ-507: {wire:#?}"
    );
    let pinned = at("--requirement e2e/wire/requirements.txt");
    assert_eq!(pinned, installed, "AZ-507: {wire:#?}");
}

#[test]
fn az507_ci_runs_them_with_everything_else() {
    let ci = std::fs::read_to_string(CI).unwrap();
    assert!(
        ci.lines().any(|line| line.trim() == "./e2e/run test"),
        "AZ-507"
    );
    let launcher = std::fs::read_to_string(LAUNCHER).unwrap();
    let default = launcher
        .lines()
        .find(|line| line.trim().starts_with("parts=(unit"));
    let default = default.unwrap();
    assert!(
        default.split_whitespace().any(|part| part == "wire"),
        "AZ-507: {default}"
    );
}
