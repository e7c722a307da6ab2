//! Pages of the documentation and what they are about are one: annotations and the code's keys, alerts and the chart's.

use crate::sets::{monitoring, with};
use anyhow::{Context, Result};
use onehop_controller::cloud::{
    aws::annotations::keys,
    local::annotations::{KNOWN, METALLB_ADDRESSES, METALLB_POOL, METALLB_SHARING},
};
use onehop_e2e::chart::Chart;
use std::collections::BTreeSet;

/// First cells of the tables below a heading, without their quotes, and the rest of each row.
fn rows(page: &str, heading: &str) -> Result<Vec<(String, String)>> {
    let text = std::fs::read_to_string(Chart::folder().join("../..").join(page))?;
    let below = text.split(&format!("\n## {heading}")).nth(1);
    let below = if heading.is_empty() {
        text.as_str()
    } else {
        below.with_context(|| format!("{page} has no heading {heading}"))?
    };
    let below = if heading.is_empty() {
        below
    } else {
        below.split("\n## ").next().unwrap_or_default()
    };
    let row = |line: &str| {
        let (first, rest) = line.strip_prefix("| `")?.split_once('`')?;
        Some((first.to_owned(), rest.to_owned()))
    };
    Ok(below.lines().filter_map(row).collect())
}

fn names<'a>(rows: impl IntoIterator<Item = &'a (String, String)>) -> BTreeSet<&'a str> {
    rows.into_iter().map(|(name, _)| name.as_str()).collect()
}

/// C-08: every key that the code reads is on the page, and no other.
#[test]
fn c08_the_page_of_annotations_has_the_keys_of_the_code() -> Result<()> {
    const PAGE: &str = "docs/annotations.md";
    let every = rows(PAGE, "Every provider")?;
    let local = rows(PAGE, "Provider local")?;
    let mut ours: BTreeSet<&str> = KNOWN.into();
    ours.extend([METALLB_ADDRESSES, METALLB_POOL, METALLB_SHARING]);
    assert_eq!(names(every.iter().chain(&local)), ours);
    assert_eq!(names(&every), [keys::TARGET, keys::MEMBERSHIP].into());

    let aws = rows(PAGE, "Provider aws")?;
    let (replaced, read): (Vec<_>, Vec<_>) = aws
        .into_iter()
        .partition(|(key, _)| keys::REPLACED.iter().any(|(old, _)| old == key));
    assert_eq!(names(&read), keys::KNOWN.iter().copied().collect());
    assert_eq!(
        names(&replaced),
        keys::REPLACED.iter().map(|(key, _)| *key).collect()
    );
    let not_yet = read
        .iter()
        .filter(|(_, rest)| rest.contains("not carried out yet"));
    assert_eq!(names(not_yet), keys::NOT_YET.iter().copied().collect());

    let azure = rows(PAGE, "Provider azure")?;
    let source = Chart::folder().join("../../controller/src/cloud/azure/annotations/keys.rs");
    let source = std::fs::read_to_string(source)?;
    let literal = |line: &str| {
        let (_, value) = line.strip_prefix("pub const ")?.split_once("&str = \"")?;
        value.strip_suffix("\";").map(str::to_owned)
    };
    let of_service = |key: &String| key.starts_with("azure-") || key.starts_with("load-");
    let read: Vec<String> = source
        .lines()
        .filter_map(literal)
        .filter(of_service)
        .collect();
    assert!(read.len() > 20, "{read:?}");
    assert_eq!(names(&azure), read.iter().map(String::as_str).collect());
    Ok(())
}

/// C-111: every alert has a row that says what to do, with the value that changes it.
#[test]
fn c111_every_alert_is_on_its_page() -> Result<()> {
    let rendered = Chart::of_this_build()?.render(&with(monitoring()))?;
    let rule = rendered.object("PrometheusRule", "onehop")?;
    let groups = rule["spec"]["groups"].as_array().context("groups")?;
    let rules = groups.iter().filter_map(|group| group["rules"].as_array());
    let alerts: BTreeSet<&str> = rules
        .flatten()
        .filter_map(|alert| alert["alert"].as_str())
        .collect();
    let page = rows("docs/alerts.md", "")?;
    assert_eq!(names(&page), alerts);
    let values = std::fs::read_to_string(Chart::folder().join("values.yaml"))?;
    for (name, rest) in &page {
        let value = rest.split('`').nth(1).context("a value")?;
        assert!(
            values.contains(&format!("    {value}: {{")),
            "{name}: {value}"
        );
    }
    Ok(())
}
