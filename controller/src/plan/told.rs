//! Reason and message of the events of steps that more than one provider has.

/// Targets were registered with a group.
pub fn registered(targets: usize, group: &str) -> (&'static str, String) {
    let message = format!("Registered {} with {group}", count(targets));
    ("TargetsRegistered", message)
}

/// Targets were deregistered from a group.
pub fn deregistered(targets: usize, group: &str) -> (&'static str, String) {
    let message = format!("Deregistered {} from {group}", count(targets));
    ("TargetsDraining", message)
}

fn count(targets: usize) -> String {
    if targets == 1 {
        "1 target".to_owned()
    } else {
        format!("{targets} targets")
    }
}
