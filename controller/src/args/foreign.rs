//! Flags of aws-load-balancer-controller that say nothing here: of its Ingress and Gateway parts (AWS-821), and of what is
//! done otherwise. An argument list that has them still starts, with a warning for each.

/// Flags with a value.
const WITH_VALUE: [&str; 22] = [
    "alb-gateway-max-concurrent-reconciles",
    "allowed-certificate-authority-arns",
    "aws-max-retries",
    "health-probe-bind-addr",
    "ingress-class",
    "ingress-max-concurrent-reconciles",
    "lb-stabilization-monitor-interval",
    "leader-election-id",
    "leader-election-namespace",
    "log-level",
    "metrics-bind-addr",
    "nlb-gateway-max-concurrent-reconciles",
    "sync-period",
    "targetgroupbinding-max-concurrent-reconciles",
    "targetgroupbinding-max-exponential-backoff-delay",
    "targetgroupbinding-requeue-duration",
    "webhook-bind-port",
    "webhook-cert-dir",
    "webhook-cert-file",
    "webhook-key-file",
    "globalaccelerator-max-concurrent-reconciles",
    "globalaccelerator-max-exponential-backoff-delay",
];
/// Flags that are on or off: a value comes after `=` only.
const SWITCHES: [&str; 10] = [
    "disable-ingress-class-annotation",
    "disable-ingress-group-name-annotation",
    "enable-endpoint-slices",
    "enable-leader-election",
    "enable-pod-readiness-gate-inject",
    "enable-shield",
    "enable-waf",
    "enable-wafv2",
    "tolerate-non-existent-backend-action",
    "tolerate-non-existent-backend-service",
];

/// The arguments without such flags, and those flags.
pub(super) fn without_foreign(
    arguments: impl IntoIterator<Item = String>,
) -> (Vec<String>, Vec<String>) {
    let (mut kept, mut foreign) = (Vec::new(), Vec::new());
    let mut arguments = arguments.into_iter().peekable();
    while let Some(argument) = arguments.next() {
        let flag = argument.strip_prefix("--").unwrap_or_default();
        let (name, value) = flag
            .split_once('=')
            .map_or((flag, None), |(name, value)| (name, Some(value)));
        let takes = WITH_VALUE.contains(&name);
        if !takes && !SWITCHES.contains(&name) {
            kept.push(argument);
            continue;
        }
        foreign.push(format!("--{name}"));
        if takes && value.is_none() {
            arguments.next_if(|next| !next.starts_with("--"));
        }
    }
    (kept, foreign)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn aws821_aws820_flags_of_the_ingress_and_gateway_parts_are_passed_over_and_told() {
        let text = "onehop --enable-shield=false --cluster-name c --ingress-class alb --enable-waf --log-level=debug \
                    --targetgroupbinding-max-exponential-backoff-delay 1000s --sync-period --aws-region r";
        let (kept, foreign) = without_foreign(text.split_whitespace().map(str::to_owned));
        assert_eq!(
            kept.join(" "),
            "onehop --cluster-name c --aws-region r",
            "AWS-821"
        );
        let told = "--enable-shield --ingress-class --enable-waf --log-level \
                    --targetgroupbinding-max-exponential-backoff-delay --sync-period";
        assert_eq!(foreign.join(" "), told, "AWS-821: each is warned of");
        let typo = ["onehop", "--enable-sheild"].map(str::to_owned);
        assert_eq!(
            without_foreign(typo.clone()).0,
            typo,
            "a typo is none of them"
        );
    }
}
