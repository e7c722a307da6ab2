//! What we may do at the places that we write (AZ-019): which action is missing where, by the permissions and deny
//! assignments that Azure shows there. Pure; a place that shows neither is found out by its first 403 (AZ-381).

use serde_json::Value;

use super::annotations::Wishes;
use super::document::at;
use super::settings::{Settings, Side};
use crate::plan::{Notice, Refusal};

/// Which Services need a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Needed {
    /// Every one.
    ByAll,
    /// Those with a public frontend.
    ByPublic,
    /// Those that need security rules.
    ByRules,
    /// Those with a private frontend.
    ByPrivate,
}

/// A place, and what is done there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Its resource id.
    pub scope: String,
    /// What is done.
    pub actions: &'static [&'static str],
    /// By whom it is needed.
    pub needed: Needed,
}

/// An action that we may not do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Missing {
    /// Where.
    pub scope: String,
    /// What.
    pub action: &'static str,
    /// The deny assignment in the way; none where no role grants it.
    pub denied_by: Option<String>,
    /// By whom it is needed.
    pub needed: Needed,
}

/// What Azure shows of a place: lists as they came.
#[derive(Clone, Debug, Default)]
pub struct Shown {
    /// `Microsoft.Authorization/permissions`: none if it may not be read.
    pub permissions: Option<Vec<Value>>,
    /// `Microsoft.Authorization/denyAssignments`.
    pub denials: Vec<Value>,
}

/// Every place that is written.
pub fn places(settings: &Settings) -> Vec<Place> {
    let place = &settings.place;
    let group = format!(
        "/subscriptions/{}/resourceGroups/{}",
        place.subscription, place.resource_group
    );
    let of = |scope: &str, needed, actions| Place {
        scope: scope.to_owned(),
        actions,
        needed,
    };
    let mut places = vec![
        of(
            &group,
            Needed::ByAll,
            &[
                "Microsoft.Network/loadBalancers/read",
                "Microsoft.Network/loadBalancers/write",
                "Microsoft.Network/loadBalancers/delete",
                "Microsoft.Network/loadBalancers/backendAddressPools/read",
                "Microsoft.Network/loadBalancers/backendAddressPools/write",
            ],
        ),
        of(
            &group,
            Needed::ByPublic,
            &[
                "Microsoft.Network/publicIPAddresses/read",
                "Microsoft.Network/publicIPAddresses/write",
                "Microsoft.Network/publicIPAddresses/delete",
                "Microsoft.Network/publicIPAddresses/join/action",
            ],
        ),
        of(
            &place.vnet_id(),
            Needed::ByAll,
            &["Microsoft.Network/virtualNetworks/joinLoadBalancer/action"],
        ),
        of(
            &place.vnet_id(),
            Needed::ByPrivate,
            &["Microsoft.Network/virtualNetworks/subnets/join/action"],
        ),
    ];
    for group in Side::ALL.into_iter().filter_map(|side| place.group(side)) {
        places.push(of(
            &place.security_group_id(group),
            Needed::ByRules,
            &[
                "Microsoft.Network/networkSecurityGroups/read",
                "Microsoft.Network/networkSecurityGroups/write",
            ],
        ));
    }
    places
}

/// What may not be done at a place.
pub fn missing(place: &Place, shown: &Shown) -> Vec<Missing> {
    let Some(permissions) = &shown.permissions else {
        return Vec::new();
    };
    let missing = place.actions.iter().filter_map(|action| {
        let denial = shown.denials.iter().find(|denial| denies(denial, action));
        let denied_by = denial.map(|denial| {
            let named = at(denial, &["properties", "denyAssignmentName"]);
            named
                .and_then(Value::as_str)
                .unwrap_or("without a name")
                .to_owned()
        });
        let granted = permissions
            .iter()
            .any(|permission| covers(permission, action));
        (denied_by.is_some() || !granted).then(|| Missing {
            scope: place.scope.clone(),
            action,
            denied_by,
            needed: place.needed,
        })
    });
    missing.collect()
}

fn denies(denial: &Value, action: &str) -> bool {
    let permissions = at(denial, &["properties", "permissions"]).and_then(Value::as_array);
    permissions
        .into_iter()
        .flatten()
        .any(|it| covers(it, action))
}

/// Whether actions are given and not taken back.
fn covers(permission: &Value, action: &str) -> bool {
    let any = |list: &str| {
        let patterns = permission.get(list).and_then(Value::as_array);
        let mut patterns = patterns.into_iter().flatten().filter_map(Value::as_str);
        patterns.any(|pattern| matches(pattern, action))
    };
    any("actions") && !any("notActions")
}

/// Azure's patterns: `*` stands for anything, case does not count.
fn matches(pattern: &str, action: &str) -> bool {
    let (pattern, action) = (pattern.to_ascii_lowercase(), action.to_ascii_lowercase());
    let mut parts = pattern.split('*');
    let Some(rest) = parts.next().and_then(|first| action.strip_prefix(first)) else {
        return false;
    };
    let parts: Vec<&str> = parts.collect();
    let Some((last, middle)) = parts.split_last() else {
        return rest.is_empty();
    };
    let mut rest = rest;
    for part in middle {
        let Some(found) = rest.find(part) else {
            return false;
        };
        rest = &rest[found + part.len()..];
    }
    rest.ends_with(last)
}

impl Missing {
    /// In words: what, where, and what to do.
    pub fn message(&self) -> String {
        let Self { scope, action, .. } = self;
        match &self.denied_by {
            Some(name) => format!("deny assignment {name:?} forbids {action} at {scope}"),
            None => format!(
                "no role of this identity allows {action} at {scope}: assign the custom role of the chart \
                 (files/azure-role.json) there"
            ),
        }
    }

    /// Whether a Service with these wishes needs it.
    fn concerns(&self, wishes: &Wishes, rules: bool) -> bool {
        match self.needed {
            Needed::ByAll => true,
            Needed::ByPublic => !wishes.internal,
            Needed::ByPrivate => wishes.internal,
            Needed::ByRules => rules,
        }
    }
}

/// What to say of it to a Service.
pub(super) fn notices(missing: &[Missing], wishes: &Wishes) -> Vec<Notice> {
    let rules = super::security::needs_rules(wishes);
    let concerned = missing.iter().filter(|it| it.concerns(wishes, rules));
    let notice = |it: &Missing| Notice {
        reason: "PermissionMissing",
        message: it.message(),
        degrades: true,
    };
    concerned.map(notice).collect()
}

/// AZ-018: why a Service that needs security rules is not made where none can be written.
pub(super) fn locked(missing: &[Missing], wishes: &Wishes) -> Option<Refusal> {
    let of_rules = |it: &&Missing| it.needed == Needed::ByRules;
    let why = missing.iter().find(of_rules)?;
    super::security::needs_rules(wishes).then(|| Refusal {
        reason: "SecurityGroupLocked",
        message: format!(
            "it needs rules in the network security group: {}; an internal load balancer without source ranges needs none",
            why.message()
        ),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::annotations::of_options;
    use super::super::testkit::{annotated, own, resolved, settings};
    use super::*;

    fn shown(permissions: Value, denials: Value) -> Shown {
        let list = |value: Value| value.as_array().unwrap().clone();
        Shown {
            permissions: Some(list(permissions)),
            denials: list(denials),
        }
    }

    fn all_missing(shown: &Shown) -> Vec<(&'static str, Option<String>)> {
        let places = places(&settings());
        let missing = places.iter().flat_map(|place| missing(place, shown));
        missing.map(|it| (it.action, it.denied_by)).collect()
    }

    #[test]
    fn az019_az231_the_role_of_the_chart_is_enough_and_nothing_less_is() {
        let role: Value = include_str!("../../../../charts/onehop/files/azure-role.json")
            .parse()
            .unwrap();
        let given = json!([{"actions": role["Actions"], "notActions": []}]);
        assert_eq!(all_missing(&shown(given, json!([]))), []);
        let needed: usize = places(&settings())
            .iter()
            .map(|place| place.actions.len())
            .sum();
        assert_eq!(
            all_missing(&shown(json!([{"actions": ["*/read"]}]), json!([]))).len(),
            needed - 4
        );
        // What may not be looked at is not guessed.
        assert_eq!(all_missing(&Shown::default()), []);
    }

    #[test]
    fn az019_patterns_and_what_is_taken_back_are_read_as_azure_does() {
        let rows = [
            ("*", true),
            ("microsoft.network/*", true),
            ("Microsoft.Network/*/write", true),
            ("Microsoft.Network/loadBalancers/*", true),
            ("Microsoft.Network/loadBalancers", false),
            ("*/read", false),
            ("Microsoft.Network/*/read/*", false),
        ];
        for (pattern, expected) in rows {
            assert_eq!(
                matches(pattern, "Microsoft.Network/loadBalancers/write"),
                expected,
                "{pattern}"
            );
        }
        let but = json!([{"actions": ["*"], "notActions": ["Microsoft.Network/publicIPAddresses/delete"]}]);
        let missing = all_missing(&shown(but, json!([])));
        assert_eq!(
            missing,
            [("Microsoft.Network/publicIPAddresses/delete", None)]
        );
    }

    #[test]
    fn az018_az019_a_lock_on_the_security_group_stops_public_services_alone() {
        let locked_group = json!([{"properties": {
            "denyAssignmentName": "aks-lockdown",
            "permissions": [{"actions": ["*/write"], "notActions": []}],
        }}]);
        let places = places(&settings());
        let group = places
            .iter()
            .find(|place| place.needed == Needed::ByRules)
            .unwrap();
        let missing = missing(group, &shown(json!([{"actions": ["*"]}]), locked_group));
        let wishes = |annotations: &[(&str, &str)]| {
            of_options(&resolved(&annotated(own(&[80]), annotations)))
        };
        let internal = ("azure-load-balancer-internal", "true");
        let ranges = ("azure-allowed-ip-ranges", "30.0.0.0/8");
        for (annotations, refused) in [
            (&[][..], true),
            (&[internal], false),
            (&[internal, ranges], true),
        ] {
            let wishes = wishes(annotations);
            let why = locked(&missing, &wishes);
            assert_eq!(why.is_some(), refused, "AZ-018: {annotations:?}");
            assert_eq!(notices(&missing, &wishes).len(), usize::from(refused));
            if let Some(why) = why {
                for word in ["aks-lockdown", "networkSecurityGroups/write", "/nsg"] {
                    assert!(why.message.contains(word), "{}", why.message);
                }
            }
        }
    }
}
