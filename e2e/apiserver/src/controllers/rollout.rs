//! The numbers of a rollout: how many pods the new and the old `ReplicaSets` may have now. Pure.

use serde_json::Value;

use crate::object::{at, int_at, str_at};

/// `replicas` of a Deployment's or `ReplicaSet`'s spec.
pub(crate) fn replicas(object: &Value) -> i64 {
    int_at(object, &["spec", "replicas"]).unwrap_or(1)
}

/// A number of a `ReplicaSet`'s status.
pub(crate) fn status(object: &Value, field: &str) -> i64 {
    int_at(object, &["status", field]).unwrap_or(0)
}

pub(crate) fn is_rolling(deployment: &Value) -> bool {
    str_at(deployment, &["spec", "strategy", "type"]) == "RollingUpdate"
}

/// A number or a percentage of a total.
fn scaled(value: &Value, total: i64, round_up: bool) -> i64 {
    if let Some(number) = value.as_i64() {
        return number;
    }
    let percent: i64 = value
        .as_str()
        .and_then(|text| text.strip_suffix('%')?.parse().ok())
        .unwrap_or(0);
    let parts = percent * total;
    if round_up {
        parts.div_euclid(100) + i64::from(parts.rem_euclid(100) > 0)
    } else {
        parts.div_euclid(100)
    }
}

fn rolling<'a>(deployment: &'a Value, field: &str) -> &'a Value {
    at(deployment, &["spec", "strategy", "rollingUpdate", field])
}

/// Pods above the wanted number; rounded up.
pub(crate) fn max_surge(deployment: &Value) -> i64 {
    if is_rolling(deployment) {
        scaled(rolling(deployment, "maxSurge"), replicas(deployment), true)
    } else {
        0
    }
}

/// Pods below the wanted number; rounded down, but one of surge and this is at least 1.
pub(crate) fn max_unavailable(deployment: &Value) -> i64 {
    let wanted = replicas(deployment);
    if !is_rolling(deployment) || wanted == 0 {
        return 0;
    }
    let number = scaled(rolling(deployment, "maxUnavailable"), wanted, false);
    let number = if number == 0 && max_surge(deployment) == 0 {
        1
    } else {
        number
    };
    number.min(wanted)
}

/// Size of the new `ReplicaSet` now, `current` being its size and `all` that of all together (`NewRSNewReplicas`).
pub(crate) fn new_size(deployment: &Value, current: i64, all: i64) -> i64 {
    let wanted = replicas(deployment);
    if !is_rolling(deployment) {
        return wanted;
    }
    let most = wanted + max_surge(deployment);
    if all >= most {
        current
    } else {
        current + (most - all).min(wanted - current)
    }
}

/// Size and available pods of an old `ReplicaSet`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Size {
    pub(crate) replicas: i64,
    pub(crate) available: i64,
}

/// New sizes of the old `ReplicaSets`, oldest first: unhealthy pods go first, then as many as availability allows
/// (`reconcileOldReplicaSets`).
pub(crate) fn old_sizes(deployment: &Value, old: &[Size], new: Size) -> Vec<i64> {
    let mut sizes: Vec<i64> = old.iter().map(|size| size.replicas).collect();
    let old_total: i64 = sizes.iter().sum();
    let least = replicas(deployment) - max_unavailable(deployment);
    let most_down = old_total + new.replicas - least - (new.replicas - new.available);
    if old_total == 0 || most_down <= 0 {
        return sizes;
    }
    let mut cleaned = 0;
    for (size, old) in sizes.iter_mut().zip(old) {
        let down = (most_down - cleaned).min(*size - old.available).max(0);
        *size -= down;
        cleaned += down;
    }
    let available: i64 = old.iter().map(|size| size.available).sum::<i64>() + new.available;
    let mut surplus = (available - least).max(0);
    for size in &mut sizes {
        let down = surplus.min(*size);
        *size -= down;
        surplus -= down;
    }
    sizes
}

/// A `ReplicaSet`'s share when a Deployment is scaled in the middle of a rollout (`GetReplicaSetProportion`).
pub(crate) fn proportion(set: &Value, deployment: &Value, to_add: i64, added: i64) -> i64 {
    let size = replicas(set);
    if size == 0 || to_add == 0 || to_add == added {
        return 0;
    }
    let desired = replicas(deployment);
    let share = if desired == 0 {
        -size
    } else {
        let most = str_at(
            set,
            &[
                "metadata",
                "annotations",
                "deployment.kubernetes.io/max-replicas",
            ],
        );
        let before = most
            .parse::<i64>()
            .ok()
            .filter(|most| *most > 0)
            .unwrap_or(status(deployment, "replicas").max(1));
        rounded_half_away(size * (desired + max_surge(deployment)), before) - size
    };
    let allowed = to_add - added;
    if to_add > 0 {
        share.min(allowed)
    } else {
        share.max(allowed)
    }
}

fn rounded_half_away(numerator: i64, denominator: i64) -> i64 {
    (2 * numerator + denominator).div_euclid(2 * denominator)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn deployment(replicas: i64, surge: &Value, unavailable: &Value) -> Value {
        json!({"spec": {"replicas": replicas, "strategy": {
            "type": "RollingUpdate", "rollingUpdate": {"maxSurge": surge, "maxUnavailable": unavailable}
        }}})
    }

    #[test]
    fn surge_rounds_up_and_unavailable_down() {
        let quarter = json!("25%");
        let seven = deployment(7, &quarter, &quarter);
        assert_eq!((max_surge(&seven), max_unavailable(&seven)), (2, 1));
        let one = deployment(1, &quarter, &quarter);
        assert_eq!((max_surge(&one), max_unavailable(&one)), (1, 0));
        let stuck = deployment(3, &json!(0), &json!("1%"));
        assert_eq!((max_surge(&stuck), max_unavailable(&stuck)), (0, 1));
    }

    #[test]
    fn a_rollout_starts_with_the_surge_and_without_loss() {
        let four = deployment(4, &json!("25%"), &json!("25%"));
        assert_eq!(new_size(&four, 0, 4), 1);
        let old = [Size {
            replicas: 4,
            available: 4,
        }];
        assert_eq!(
            old_sizes(
                &four,
                &old,
                Size {
                    replicas: 1,
                    available: 0
                }
            ),
            [3]
        );
        let careful = deployment(4, &json!(1), &json!(0));
        assert_eq!(
            old_sizes(
                &careful,
                &old,
                Size {
                    replicas: 1,
                    available: 0
                }
            ),
            [4]
        );
        assert_eq!(
            old_sizes(
                &careful,
                &old,
                Size {
                    replicas: 1,
                    available: 1
                }
            ),
            [3]
        );
    }

    #[test]
    fn unhealthy_old_pods_go_first() {
        let four = deployment(4, &json!(1), &json!(0));
        let old = [
            Size {
                replicas: 2,
                available: 2,
            },
            Size {
                replicas: 2,
                available: 0,
            },
        ];
        let sizes = old_sizes(
            &four,
            &old,
            Size {
                replicas: 1,
                available: 1,
            },
        );
        assert_eq!(sizes, [2, 1]);
    }
}
