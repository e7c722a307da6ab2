//! Attributes: set what differs, reset what we set and nobody asks for any more, touch nothing else
//! (AWS-607). Pure.
//!
//! Which keys are ours is noted in a tag of the object itself, before they are set: it survives restarts
//! and lost writes, and an object that was adopted has none. Another tag says which values were seen set,
//! so that a restart needs no read of them (AWS-701) and a change made meanwhile is noticed all the same.

use std::collections::BTreeSet;

use sha2::{Digest, Sha256};

use super::model::Attributes;
use super::names::Tags;

/// Tag that lists the keys that we set, with blanks.
pub const OWNED: &str = "onehop.dev/owned-attributes";
/// Tag with a digest of the attributes that were asked for when they were seen to be so.
pub const SEEN: &str = "onehop.dev/attributes";
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
    /// Tags that note it.
    pub tags: Tags,
    /// Keys of tags that no longer hold.
    pub untag: Vec<String>,
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

/// Digest of what is asked for; none for nothing.
fn digest(asked: &Attributes) -> Option<String> {
    let lines: Vec<_> = asked.iter().map(|(k, v)| format!("{k}={v}\n")).collect();
    let digest = Sha256::digest(lines.concat());
    let digits = digest.iter().take(8).map(|byte| format!("{byte:02x}"));
    (!asked.is_empty()).then(|| digits.collect())
}

/// Compares. Where attributes were not read since the start, the tag says whether what is asked for has been
/// seen to be so; if not, all of it is set anew, which changes nothing where it is so.
pub fn wanted(
    defaults: &Defaults,
    asked: &Attributes,
    have: Option<&Attributes>,
    tags: &Tags,
) -> Wanted {
    let noted = tags.get(OWNED).map(String::as_str).unwrap_or_default();
    let noted: BTreeSet<&str> = noted.split(' ').filter(|key| !key.is_empty()).collect();
    let seen = digest(asked);
    if have.is_none() && tags.get(SEEN) == seen.as_ref() {
        return Wanted::default();
    }
    let is =
        |key: &str, value: &str| have.is_some_and(|have| have.get(key).is_none_or(|v| v == value));
    let mut set = asked.clone();
    set.retain(|key, value| have.is_none_or(|have| have.get(key) != Some(&*value)));
    let mut owned: BTreeSet<String> = asked.keys().cloned().collect();
    for key in noted.iter().filter(|key| !asked.contains_key(**key)) {
        let default = defaults.iter().find(|(known, _)| known == key);
        if let Some((_, default)) = default.filter(|(_, default)| !is(key, default)) {
            set.insert((*key).to_owned(), (*default).to_owned());
            // Ours until the reset is seen.
            owned.insert((*key).to_owned());
        }
    }
    let mut wanted = Wanted {
        tags: owned_tag(&owned.into_iter().collect::<Vec<_>>()),
        set,
        untag: Vec::new(),
    };
    if wanted.set.is_empty() {
        wanted.tags.extend(seen.map(|seen| (SEEN.to_owned(), seen)));
        let over = [OWNED, SEEN].into_iter();
        let over = over.filter(|key| tags.contains_key(*key) && !wanted.tags.contains_key(*key));
        wanted.untag = over.map(str::to_owned).collect();
    }
    wanted
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
        assert_eq!(first.tags, map(&[(OWNED, cross)]), "noted before it is set");
        let done = map(&[(cross, "true"), (delete, "true")]);
        let second = wanted(&BALANCER, &asked, Some(&done), &first.tags);
        assert_eq!((second.set, second.untag), (map(&[]), vec![]));
        assert!(second.tags.contains_key(SEEN));
        let removed = wanted(&BALANCER, &map(&[]), Some(&done), &second.tags);
        assert_eq!(
            removed.set,
            map(&[(cross, "false")]),
            "reset to AWS's default"
        );
        assert_eq!(
            (removed.tags, removed.untag),
            (first.tags, vec![]),
            "noted until it is seen"
        );
        let seen = wanted(&BALANCER, &map(&[]), Some(&fresh), &second.tags);
        let both = vec![OWNED.to_owned(), SEEN.to_owned()];
        assert_eq!((seen.set, seen.untag), (map(&[]), both));
    }

    #[test]
    fn aws607_aws701_after_a_restart_nothing_is_read_and_a_change_made_meanwhile_is_carried_out() {
        let cross = "load_balancing.cross_zone.enabled";
        let asked = map(&[(cross, "true")]);
        let done = wanted(&BALANCER, &asked, Some(&asked), &Tags::new()).tags;
        let unread = |asked: &Attributes| wanted(&BALANCER, asked, None, &done);
        assert_eq!(unread(&asked), Wanted::default(), "AWS-701");
        let other = map(&[(cross, "true"), ("deletion_protection.enabled", "true")]);
        assert_eq!(unread(&other).set, other, "AWS-607: changed");
        assert_eq!(
            unread(&map(&[])).set,
            map(&[(cross, "false")]),
            "AWS-607: removed"
        );
        let never = wanted(&BALANCER, &asked, None, &Tags::new());
        assert_eq!(never.set, asked, "set before it was seen: a crash");
    }

    #[test]
    fn aws607_nothing_is_done_about_attributes_of_others() {
        let by_hand = map(&[("deletion_protection.enabled", "true")]);
        let adopted = wanted(&BALANCER, &map(&[]), Some(&by_hand), &Tags::new());
        assert_eq!(adopted, Wanted::default());
    }
}
