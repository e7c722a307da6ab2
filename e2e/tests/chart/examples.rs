//! The examples are what they say: Services whose annotations the providers read without a complaint, objects of types
//! that the chart installs, and files that exist.

use crate::sets::{examples, files};
use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::Service;
use onehop_controller::cloud::{aws, azure, local};
use onehop_core::{crd::AddressPool, service::ServiceSpec};
use onehop_e2e::chart::Chart;
use serde_json::Value;
use std::path::Path;

/// Every object of the manifests of a folder, with its file.
pub(crate) fn objects(folder: &Path) -> Result<Vec<(String, Value)>> {
    let mut found = Vec::new();
    let mut paths: Vec<_> = std::fs::read_dir(folder)?.collect::<Result<_, _>>()?;
    paths.sort_by_key(std::fs::DirEntry::path);
    for path in paths.iter().map(std::fs::DirEntry::path) {
        let name = path.display().to_string();
        if path.extension().is_some_and(|is| is == "yaml") && !name.contains("/values-") {
            let text = std::fs::read_to_string(&path)?;
            let all: Vec<Value> =
                serde_saphyr::from_multiple(&text).with_context(|| name.clone())?;
            found.extend(all.into_iter().map(|object| (name.clone(), object)));
        }
    }
    Ok(found)
}

#[test]
fn c08_services_of_the_examples_are_read_without_a_complaint() -> Result<()> {
    let settings = aws::settings::Settings::new("i".into(), "c");
    let mut counts = [0; 3];
    for folder in examples()? {
        for (file, object) in objects(&folder)? {
            if object["kind"] != "Service" {
                continue;
            }
            let mut typed: Service = serde_json::from_value(object.clone())?;
            typed.metadata.uid = Some("u".to_owned());
            let (service, odd) = ServiceSpec::read(&typed).with_context(|| file.clone())?;
            assert!(odd.is_empty(), "{file}: {odd:?}");
            match object["spec"]["loadBalancerClass"].as_str() {
                Some("onehop.dev/local") => {
                    let (_, problems) = local::annotations::parse(&service);
                    assert_eq!(problems, [], "{file}");
                    counts[0] += 1;
                }
                Some("onehop.dev/aws") => {
                    let (_, problems) = aws::annotations::parse(&settings, &service);
                    assert!(problems.is_empty(), "{file}: {problems:?}");
                    counts[1] += 1;
                }
                Some("onehop.dev/azure") => {
                    let (_, problems) = azure::annotations::parse(&service);
                    assert!(problems.is_empty(), "{file}: {problems:?}");
                    counts[2] += 1;
                }
                other => anyhow::bail!("{file}: whose is class {other:?}?"),
            }
        }
    }
    assert!(counts.iter().all(|count| *count >= 2), "{counts:?}");
    Ok(())
}

#[test]
fn pools_of_the_examples_are_of_our_type() -> Result<()> {
    let mut count = 0;
    for folder in examples()? {
        for (file, object) in objects(&folder)? {
            if object["kind"] == "AddressPool" {
                let pool: AddressPool = serde_json::from_value(object.clone())?;
                let read = serde_json::to_value(&pool.spec)?;
                let mut keys = object["spec"].as_object().context("a spec")?.keys();
                assert!(keys.all(|key| read.get(key).is_some()), "{file}: {read}");
                count += 1;
            }
        }
    }
    assert!(count > 0);
    Ok(())
}

/// What Argo CD and Flux are told to install is there.
#[test]
fn c63_what_git_ops_tools_are_told_exists() -> Result<()> {
    let root = Chart::folder().join("../..");
    let mut count = 0;
    for folder in examples()? {
        for (file, object) in objects(&folder)? {
            let (chart, values, base) = match object["kind"].as_str() {
                Some("Application") => {
                    let source = &object["spec"]["source"];
                    let chart = source["path"].as_str().context("a path")?;
                    (chart, &source["helm"]["valueFiles"], root.join(chart))
                }
                Some("HelmRelease") => {
                    let spec = &object["spec"]["chart"]["spec"];
                    let chart = spec["chart"].as_str().context("a path")?;
                    (chart, &spec["valuesFiles"], root.clone())
                }
                _ => continue,
            };
            assert!(
                root.join(chart).join("Chart.yaml").exists(),
                "{file}: {chart}"
            );
            for name in values.as_array().context("values files")? {
                let name = name.as_str().context("a name")?;
                assert!(base.join(name).exists(), "{file}: {name}");
                count += 1;
            }
        }
    }
    assert!(count >= 2, "{count}");
    assert!(files()?.len() >= 3);
    Ok(())
}
