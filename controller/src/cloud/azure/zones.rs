//! The availability zones of a region (AZ-175). Pure.

use serde_json::Value;

use super::document::text;

/// Zones in which a public IP can be in a region, by what Azure says of Microsoft.Network; none where it has none.
pub fn of_region(provider: &Value, region: &str) -> Vec<String> {
    let list = |value: &Value, key: &str| {
        let list = value.get(key).and_then(Value::as_array);
        list.cloned().unwrap_or_default()
    };
    // Said as "West Europe" there, and as "westeurope" elsewhere.
    let plain = |name: &str| name.replace(' ', "").to_ascii_lowercase();
    let is = |value: &Value, key: &str, wanted: &str| {
        text(value, &[key]).is_some_and(|it| plain(it) == plain(wanted))
    };
    let kinds = list(provider, "resourceTypes").into_iter();
    let kinds = kinds.filter(|kind| is(kind, "resourceType", "publicIPAddresses"));
    let regions = kinds.flat_map(|kind| list(&kind, "zoneMappings"));
    let regions = regions.filter(|entry| is(entry, "location", region));
    let zones = regions.flat_map(|entry| list(&entry, "zones"));
    let mut zones: Vec<String> = zones
        .filter_map(|it| it.as_str().map(str::to_owned))
        .collect();
    zones.sort();
    zones.dedup();
    zones
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn az175_the_zones_of_a_region_are_those_of_public_ips_there() {
        let provider = json!({"namespace": "Microsoft.Network", "resourceTypes": [
            {"resourceType": "loadBalancers", "zoneMappings": [{"location": "West Europe", "zones": ["9"]}]},
            {"resourceType": "publicIPAddresses", "zoneMappings": [
                {"location": "West Europe", "zones": ["3", "1", "2"]},
                {"location": "West US", "zones": []},
            ]},
        ]});
        assert_eq!(of_region(&provider, "westeurope"), ["1", "2", "3"]);
        for none in ["westus", "northeurope"] {
            assert_eq!(of_region(&provider, none), [""; 0], "{none}");
        }
        assert_eq!(of_region(&Value::Null, "westeurope"), [""; 0]);
    }
}
