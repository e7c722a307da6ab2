//! Golden renderings, lint and determinism.

use crate::sets::{golden, sets};
use anyhow::Result;
use onehop_e2e::chart::Chart;

/// Without the CRDs, which have golden files of their own in `core`, and without dashboards, which are files as they are.
fn reviewed(text: &str) -> String {
    let mut kept: Vec<&str> = text
        .split("---\n")
        .filter(|part| !part.contains("\nkind: CustomResourceDefinition\n"))
        .filter(|part| !part.contains("\nkind: ConfigMap\n"))
        .filter(|part| !part.trim().is_empty())
        .collect();
    // Helm's order of installation is stable within a kind only by the order of files; the text says which file.
    kept.sort_by_key(|part| part.lines().next().map(str::to_owned));
    kept.join("---\n")
}

/// C-68: a change of what users get is seen in review.
#[test]
fn c68_renderings_are_golden() -> Result<()> {
    let chart = Chart::of_this_build()?;
    for set in golden()? {
        insta::assert_snapshot!(set.name.as_str(), reviewed(&chart.template(&set.values)?));
    }
    Ok(())
}

/// C-61, C-62, C-T01 and C-T09: two renderings are byte-equal and nothing of them is made up while rendering.
#[test]
fn c61_ct01_ct09_rendering_is_deterministic() -> Result<()> {
    let chart = Chart::of_this_build()?;
    for set in sets()? {
        let text = chart.template(&set.values)?;
        assert_eq!(text, chart.template(&set.values)?, "{}", set.name);
        assert!(!text.contains("caBundle"), "C-62: {}", set.name);
    }
    let made_up = [
        "lookup",
        "rand",
        "now",
        "genCA",
        "genSelfSignedCert",
        "uuidv4",
        "shuffle",
    ];
    for file in std::fs::read_dir(Chart::folder().join("templates"))? {
        let text = std::fs::read_to_string(file?.path())?;
        for action in text
            .split("{{")
            .skip(1)
            .filter_map(|rest| rest.split("}}").next())
        {
            let mut words = action.split(|c: char| !c.is_alphanumeric());
            let bad = words.find(|word| {
                made_up
                    .iter()
                    .any(|name| word == name || (*name == "rand" && word.starts_with("rand")))
            });
            // Comments are no actions.
            assert!(
                bad.is_none()
                    || action
                        .trim_start_matches('-')
                        .trim_start()
                        .starts_with("/*"),
                "{bad:?} in {{{{{action}}}}}"
            );
        }
    }
    Ok(())
}

/// C-T02: strict lint of the minimal values (and of every other set) finds neither error nor warning.
#[test]
fn ct02_lint_is_clean() -> Result<()> {
    let chart = Chart::of_this_build()?;
    for set in sets()? {
        let said = chart.lint(&set.values)?;
        assert!(
            !said.contains("[WARNING]") && !said.contains("[ERROR]"),
            "{}: {said}",
            set.name
        );
        assert!(said.contains("0 chart(s) failed"), "{}: {said}", set.name);
    }
    Ok(())
}
