//! Attributes: set what differs, reset what we set and nobody asks for any more, touch nothing else
//! (AWS-607). Pure.
//!
//! Which keys are ours is noted in a tag of the object itself, before they are set: it survives restarts
//! and lost writes, and an object that was adopted has none.

use std::collections::BTreeSet;

use super::model::Attributes;
use super::names::Tags;

/// Tag that lists the keys that we set, with blanks.
pub const OWNED: &str = "onehop.dev/owned-attributes";
/// Longest value of a tag.
const TAG_MAX: usize = 256;

/// Keys of one kind of object with AWS's defaults.
pub type Defaults = [(&'static str, &'static str)];

/// Of a Network Load Balancer.
pub const BALANCER: [(&str, &str); 7] = [
    ("access_logs.s3.enabled", "false"),
    ("access_logs.s3.bucket", ""),
    ("access_logs.s3.prefix", ""),
    ("deletion_protection.enabled", "false"),
    ("dns_record.client_routing_policy", "any_availability_zone"),
    ("load_balancing.cross_zone.enabled", "false"),
    ("zonal_shift.config.enabled", "false"),
];

/// Of a target group. Whether the client's address is kept depends on the group and is left to AWS.
pub const GROUP: [(&str, &str); 14] = [
    (
        "deregistration_delay.connection_termination.enabled",
        "false",
    ),
    ("deregistration_delay.timeout_seconds", "300"),
    (
        "load_balancing.cross_zone.enabled",
        "use_load_balancer_configuration",
    ),
    ("proxy_protocol_v2.enabled", "false"),
    ("stickiness.enabled", "false"),
    ("stickiness.type", "source_ip"),
    ("target_failover.on_deregistration", "no_rebalance"),
    ("target_failover.on_unhealthy", "no_rebalance"),
    (
        "target_group_health.dns_failover.minimum_healthy_targets.count",
        "1",
    ),
    (
        "target_group_health.dns_failover.minimum_healthy_targets.percentage",
        "off",
    ),
    (
        "target_group_health.unhealthy_state_routing.minimum_healthy_targets.count",
        "1",
    ),
    (
        "target_group_health.unhealthy_state_routing.minimum_healthy_targets.percentage",
        "off",
    ),
    (
        "target_health_state.unhealthy.connection_termination.enabled",
        "true",
    ),
    (
        "target_health_state.unhealthy.draining_interval_seconds",
        "0",
    ),
];

/// Of a listener.
pub const LISTENER: [(&str, &str); 1] = [("tcp.idle_timeout.seconds", "350")];

/// What to do about an object's attributes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    /// Values to set, resets among them.
    pub set: Attributes,
    /// Keys that are ours from now on.
    owned: Vec<String>,
    /// Whether the tag that lists them is to go.
    pub untag: bool,
}

impl Wanted {
    /// The tag that lists the keys that are ours.
    pub fn tag(&self) -> Tags {
        owned_tag(&self.owned)
    }
}

/// The tag that lists these keys; none for none.
pub fn owned_tag(keys: &[String]) -> Tags {
    let mut text = String::new();
    for key in keys {
        // What does not fit any more is not reset later; it was set all the same.
        if text.len() + key.len() < TAG_MAX {
            if !text.is_empty() {
                text.push(' ');
            }
            text.push_str(key);
        }
    }
    let tag = (OWNED.to_owned(), text);
    Some(tag)
        .filter(|(_, text)| !text.is_empty())
        .into_iter()
        .collect()
}

/// Compares. Attributes that were never read are left alone.
pub fn wanted(
    defaults: &Defaults,
    asked: &Attributes,
    have: Option<&Attributes>,
    tags: &Tags,
) -> Wanted {
    let noted = tags.get(OWNED).map(String::as_str).unwrap_or_default();
    let noted: BTreeSet<&str> = noted.split(' ').filter(|key| !key.is_empty()).collect();
    let Some(have) = have else {
        return Wanted {
            set: Attributes::new(),
            owned: noted.iter().map(|key| (*key).to_owned()).collect(),
            untag: false,
        };
    };
    let differs = |(key, value): &(&String, &String)| have.get(*key) != Some(*value);
    let pairs = asked.iter().filter(differs);
    let mut set: Attributes = pairs.map(|(k, v)| (k.clone(), v.clone())).collect();
    let mut owned: BTreeSet<String> = asked.keys().cloned().collect();
    for key in noted.iter().filter(|key| !asked.contains_key(**key)) {
        let default = defaults.iter().find(|(known, _)| known == key);
        let now = have.get(*key);
        if let Some((_, default)) = default
            && now.is_some_and(|now| now != default)
        {
            set.insert((*key).to_owned(), (*default).to_owned());
            // Ours until the reset is seen.
            owned.insert((*key).to_owned());
        }
    }
    Wanted {
        set,
        untag: owned.is_empty() && !noted.is_empty(),
        owned: owned.into_iter().collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(pairs: &[(&str, &str)]) -> Attributes {
        pairs
            .iter()
            .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
            .collect()
    }

    #[test]
    fn aws607_only_keys_that_differ_are_set_and_only_our_own_are_reset() {
        let cross = "load_balancing.cross_zone.enabled";
        let delete = "deletion_protection.enabled";
        let asked = map(&[(cross, "true")]);
        let fresh = map(&[(cross, "false"), (delete, "true")]);
        let first = wanted(&BALANCER, &asked, Some(&fresh), &Tags::new());
        assert_eq!(
            first.set, asked,
            "deletion protection was set by hand and stays"
        );
        assert_eq!(first.tag(), map(&[(OWNED, cross)]));
        let done = map(&[(cross, "true"), (delete, "true")]);
        let second = wanted(&BALANCER, &asked, Some(&done), &first.tag());
        assert_eq!((second.set, second.untag), (map(&[]), false));
        let removed = wanted(&BALANCER, &map(&[]), Some(&done), &first.tag());
        assert_eq!(
            removed.set,
            map(&[(cross, "false")]),
            "reset to AWS's default"
        );
        assert_eq!(
            (removed.tag(), removed.untag),
            (first.tag(), false),
            "noted until it is seen"
        );
        let seen = wanted(&BALANCER, &map(&[]), Some(&fresh), &first.tag());
        assert_eq!((seen.set, seen.untag), (map(&[]), true));
    }

    #[test]
    fn aws607_nothing_is_done_about_attributes_that_were_not_read_or_that_are_others() {
        let asked = map(&[("a", "1")]);
        assert_eq!(wanted(&BALANCER, &asked, None, &Tags::new()).set, map(&[]));
        let by_hand = map(&[("deletion_protection.enabled", "true")]);
        let adopted = wanted(&BALANCER, &map(&[]), Some(&by_hand), &Tags::new());
        assert_eq!(adopted, Wanted::default());
    }
}
