//! Every problem that users reported elsewhere is answered (S-343): by a test that exists, or by a reason. So is every
//! rule that packets can show: by a scenario that exists.

#![allow(clippy::expect_used, reason = "helpers of tests fail the test")]

use std::path::Path;

/// Rows of the specification's list.
const ROWS: &[u8] = &[
    1, 2, 4, 5, 6, 7, 8, 9, 11, 13, 14, 15, 18, 19, 20, 21, 22, 23, 25, 27, 28, 30, 31, 32, 33, 34,
    35, 36, 40, 41, 42, 43, 44, 45, 46, 48, 50, 51, 52, 53, 54, 56, 57, 58, 59, 61, 62, 64,
];

fn sources(folder: &Path, text: &mut String) {
    for entry in std::fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            sources(&path, text);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            text.push_str(&std::fs::read_to_string(&path).expect("a source file"));
        }
    }
}

#[test]
fn s343_every_reported_problem_has_a_row_and_every_named_test_exists() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = std::fs::read_to_string(root.join("../docs/datapath.md")).expect("the page");
    let mut code = String::new();
    for folder in ["src", "tests", "../e2e/tests/net"] {
        sources(&root.join(folder), &mut code);
    }
    for row in ROWS {
        assert!(page.contains(&format!("DI-{row:02}")), "S-343: DI-{row:02}");
    }
    let mut named = 0;
    for word in page.split('`').filter(|word| word.ends_with("_…")) {
        let test = word
            .rsplit("::")
            .next()
            .unwrap_or(word)
            .trim_end_matches('…');
        assert!(
            code.contains(&format!("fn {test}")),
            "S-343: no test begins with {test}"
        );
        named += 1;
    }
    assert!(named > 30, "S-343: {named} tests are named");
}
