//! Prints our `CustomResourceDefinition`s.

fn main() {
    for definition in onehop_core::crd::definitions() {
        println!(
            "{}",
            serde_json::to_string_pretty(&definition).expect("a definition is JSON")
        );
    }
}
