//! A `KubeProxyConfiguration` (`kubeproxy.config.k8s.io/v1alpha1`) in place of flags (S-304), so that the configuration
//! of a cluster can be taken over as it is. What it says wins over flags; what means nothing here is named.

use std::net::SocketAddr;
use std::path::Path;
use std::str::FromStr;

use clap::ValueEnum;
use serde_json::Value;

use super::{Args, Config, duration};
use crate::sys::sysctl::Liberal;

/// Why a file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// It cannot be read.
    #[error("cannot read the configuration file {path}: {error}")]
    Read {
        /// The file.
        path: String,
        /// What the system said.
        error: std::io::Error,
    },
    /// It is no YAML or JSON.
    #[error("the configuration file {path} is neither YAML nor JSON: {error}")]
    Syntax {
        /// The file.
        path: String,
        /// What the parser said.
        error: String,
    },
    /// It is another kind of object.
    #[error(
        "{path} is a {kind:?}, not a KubeProxyConfiguration of kubeproxy.config.k8s.io/v1alpha1"
    )]
    Kind {
        /// The file.
        path: String,
        /// Version and kind that it states.
        kind: String,
    },
    /// A field has a value that means nothing.
    #[error("configuration file: {field}: {message}")]
    Field {
        /// Path of the field.
        field: String,
        /// What is wrong.
        message: String,
    },
}

/// Takes a file's settings over into `args`; the fields that it has and that mean nothing here.
pub fn apply(args: &mut Args, path: &Path) -> Result<Vec<String>, FileError> {
    let name = path.display().to_string();
    let text = std::fs::read_to_string(path).map_err(|error| FileError::Read {
        path: name.clone(),
        error,
    })?;
    let content = serde_saphyr::from_str(&text).map_err(|error| FileError::Syntax {
        path: name.clone(),
        error: error.to_string(),
    })?;
    apply_value(args, &name, &content)
}

fn apply_value(args: &mut Args, path: &str, content: &Value) -> Result<Vec<String>, FileError> {
    let text = |key: &str| content.get(key).and_then(Value::as_str).unwrap_or_default();
    let kind = format!("{} {}", text("apiVersion"), text("kind"));
    if kind != "kubeproxy.config.k8s.io/v1alpha1 KubeProxyConfiguration" {
        let path = path.to_owned();
        return Err(FileError::Kind { path, kind });
    }
    let mut ignored = Vec::new();
    let mut leaves = Vec::new();
    flatten("", content, &mut leaves);
    for (field, value) in leaves {
        if matches!(field.as_str(), "apiVersion" | "kind") {
            continue;
        }
        match set(args, &field, value) {
            Ok(true) => {}
            Ok(false) => ignored.push(field),
            Err(message) => return Err(FileError::Field { field, message }),
        }
    }
    Ok(ignored)
}

/// What the agent runs with, in the words of that configuration (`/configz`).
pub fn configz(config: &Config) -> String {
    let addresses = |list: &[SocketAddr]| {
        let list: Vec<String> = list.iter().map(SocketAddr::to_string).collect();
        list.join(",")
    };
    let settings = &config.settings;
    let seconds = |time: std::time::Duration| format!("{}s", time.as_secs());
    let content = serde_json::json!({
        "kubeproxy.config.k8s.io": {
            "mode": "nftables",
            "hostnameOverride": config.node.as_str(),
            "bindAddressHardFail": config.bind_hard_fail,
            "healthzBindAddress": addresses(&config.health_binds),
            "metricsBindAddress": addresses(&config.metrics_binds),
            "nftables": {
                "masqueradeAll": config.masquerade_all,
                "masqueradeBit": config.masquerade_mark.trailing_zeros(),
            },
            "conntrack": {
                "maxPerCore": settings.max_per_core,
                "min": settings.max_least,
                "tcpEstablishedTimeout": seconds(settings.tcp_established),
                "tcpCloseWaitTimeout": seconds(settings.tcp_close_wait),
                "udpTimeout": seconds(settings.udp),
                "udpStreamTimeout": seconds(settings.udp_stream),
            },
        },
    });
    content.to_string()
}

/// All fields that have a value, with their paths. Lists count as values.
fn flatten<'a>(prefix: &str, value: &'a Value, leaves: &mut Vec<(String, &'a Value)>) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                let path = if prefix.is_empty() {
                    name.clone()
                } else {
                    format!("{prefix}.{name}")
                };
                flatten(&path, value, leaves);
            }
        }
        // Configurations written out whole name every field, most of them empty.
        Value::Null => {}
        Value::String(text) if text.is_empty() => {}
        Value::Array(list) if list.is_empty() => {}
        value => leaves.push((prefix.to_owned(), value)),
    }
}

/// Sets a field; false: it means nothing here.
fn set(args: &mut Args, field: &str, value: &Value) -> Result<bool, String> {
    match field {
        "bindAddress" => args.bind_address = Some(parsed(value)?),
        "bindAddressHardFail" => args.bind_address_hard_fail = flag(value)?,
        "clientConnection.kubeconfig" => args.kubeconfig = Some(text(value)?.into()),
        "clusterCIDR" => {
            let ranges = text(value)?.split(',');
            args.cluster_cidr = ranges.map(of_text).collect::<Result<_, _>>()?;
        }
        "conntrack.maxPerCore" => args.conntrack_max_per_core = number(value)?,
        "conntrack.min" => args.conntrack_min = number(value)?,
        "conntrack.tcpBeLiberal" => {
            let on = flag(value)?;
            args.conntrack_tcp_be_liberal = if on { Liberal::On } else { Liberal::Off };
        }
        "conntrack.tcpCloseWaitTimeout" => args.conntrack_tcp_timeout_close_wait = time(value)?,
        "conntrack.tcpEstablishedTimeout" => {
            args.conntrack_tcp_timeout_established = time(value)?;
        }
        "conntrack.udpStreamTimeout" => args.conntrack_udp_timeout_stream = time(value)?,
        "conntrack.udpTimeout" => args.conntrack_udp_timeout = time(value)?,
        "detectLocal.bridgeInterface" => args.pod_bridge_interface = Some(text(value)?.to_owned()),
        "detectLocal.interfaceNamePrefix" => {
            args.pod_interface_name_prefix = Some(text(value)?.to_owned());
        }
        "detectLocalMode" => args.detect_local_mode = ValueEnum::from_str(text(value)?, true)?,
        "healthzBindAddress" => args.healthz_bind_address = vec![socket(value, 10256)?],
        "hostnameOverride" => args.node_name = Some(text(value)?.to_owned()),
        "metricsBindAddress" => args.metrics_bind_address = vec![socket(value, 10249)?],
        "nftables.masqueradeAll" => args.masquerade_all = flag(value)?,
        "nftables.masqueradeBit" => args.iptables_masquerade_bit = bit(value)?,
        "nodePortAddresses" => {
            let list = value.as_array().ok_or("not a list")?.iter();
            let list = list.map(|item| text(item).map(str::to_owned));
            args.nodeport_addresses = list.collect::<Result<_, _>>()?;
        }
        // Ours is always this one; another one was chosen for another program.
        "mode" => return Ok(text(value)? == "nftables"),
        _ => return Ok(false),
    }
    Ok(true)
}

fn text(value: &Value) -> Result<&str, String> {
    value.as_str().ok_or_else(|| format!("{value} is no text"))
}

fn of_text<T: FromStr>(text: &str) -> Result<T, String> {
    let text = text.trim();
    text.parse().map_err(|_| format!("{text:?} cannot be read"))
}

fn parsed<T: FromStr>(value: &Value) -> Result<T, String> {
    of_text(text(value)?)
}

fn flag(value: &Value) -> Result<bool, String> {
    value
        .as_bool()
        .ok_or_else(|| format!("{value} is neither true nor false"))
}

fn number(value: &Value) -> Result<u32, String> {
    let number = value.as_u64().and_then(|number| u32::try_from(number).ok());
    number.ok_or_else(|| format!("{value} is no number of this size"))
}

fn bit(value: &Value) -> Result<u8, String> {
    let bit = number(value)?;
    u8::try_from(bit)
        .ok()
        .filter(|bit| *bit < 32)
        .ok_or_else(|| format!("{bit} is not within 0 to 31"))
}

fn time(value: &Value) -> Result<std::time::Duration, String> {
    duration::parse(text(value)?)
}

/// An address with or without a port.
fn socket(value: &Value, port: u16) -> Result<SocketAddr, String> {
    let text = text(value)?;
    text.parse()
        .or_else(|_| of_text(text).map(|address| SocketAddr::new(address, port)))
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use ipnet::IpNet;

    use super::*;
    use crate::args::DetectLocalMode;

    fn applied(yaml: &str) -> Result<(Args, Vec<String>), FileError> {
        let mut args = Args::try_parse_from([
            "onehop-node-agent",
            "--masquerade-all",
            "--cluster-cidr=10.0.0.0/8",
        ])
        .expect("flags parse");
        let head = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n";
        let content: Value = serde_saphyr::from_str(&format!("{head}{yaml}")).expect("YAML");
        let ignored = apply_value(&mut args, "test", &content)?;
        Ok((args, ignored))
    }

    #[test]
    fn s304_a_file_overrides_flags_and_what_means_nothing_is_named() {
        let (args, ignored) = applied(
            "clusterCIDR: 10.244.0.0/16,fd00::/56\n\
             mode: nftables\n\
             detectLocalMode: NodeCIDR\n\
             healthzBindAddress: 0.0.0.0:11256\n\
             metricsBindAddress: 127.0.0.1\n\
             nodePortAddresses: [primary]\n\
             bindAddress: 10.0.1.1\n\
             nftables:\n  masqueradeAll: false\n  masqueradeBit: 10\n  syncPeriod: 30s\n\
             conntrack:\n  maxPerCore: 1000\n  tcpCloseWaitTimeout: 2h0m0s\n  tcpBeLiberal: true\n\
             winkernel:\n  enableDSR: true\n  networkName: \"\"\n",
        )
        .expect("a good file");
        let ranges: Vec<IpNet> = ["10.244.0.0/16", "fd00::/56"]
            .map(|text| text.parse().expect("a range"))
            .to_vec();
        assert_eq!(args.cluster_cidr, ranges);
        assert!(!args.masquerade_all, "the file wins");
        assert_eq!(args.iptables_masquerade_bit, 10);
        assert_eq!(args.detect_local_mode, DetectLocalMode::NodeCidr);
        assert_eq!(args.healthz_bind_address[0].port(), 11256);
        assert_eq!(args.metrics_bind_address[0].port(), 10249);
        assert_eq!(args.conntrack_max_per_core, 1000);
        assert_eq!(args.conntrack_tcp_timeout_close_wait.as_secs(), 7200);
        assert_eq!(args.conntrack_tcp_be_liberal, Liberal::On);
        assert_eq!(
            args.bind_address.map(|a| a.to_string()).as_deref(),
            Some("10.0.1.1")
        );
        assert_eq!(ignored, ["nftables.syncPeriod", "winkernel.enableDSR"]);
    }

    #[test]
    fn s304_a_wrong_value_names_its_field() {
        for (yaml, field) in [
            ("clusterCIDR: 10.244.0.0/99\n", "clusterCIDR"),
            ("nftables:\n  masqueradeBit: 32\n", "nftables.masqueradeBit"),
            ("conntrack:\n  udpTimeout: soon\n", "conntrack.udpTimeout"),
        ] {
            let error = applied(yaml).expect_err("a wrong value").to_string();
            assert!(error.contains(field), "{error}");
        }
    }

    #[test]
    fn s304_another_kind_of_file_is_refused() {
        let mut args = Args::try_parse_from(["onehop-node-agent"]).expect("flags parse");
        let content = serde_json::json!({"apiVersion": "v1", "kind": "ConfigMap"});
        let error = apply_value(&mut args, "test", &content).expect_err("another kind");
        assert!(error.to_string().contains("v1 ConfigMap"), "{error}");
    }
}
