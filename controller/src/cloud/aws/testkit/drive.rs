//! Plans made and carried out on the model, lane by lane.

use onehop_core::id::ServiceKey;
use onehop_core::time::Time;

use super::{Model, settings};
use crate::cloud::aws::plan::plan;
use crate::cloud::aws::step::AwsStep;
use crate::plan::{Intent, Lane, Plan};

/// The plan for the Service of an intent; without one, for the removal of `shop/web`.
pub(in crate::cloud::aws) fn planned(
    intent: Option<&Intent>,
    model: &Model,
    now: Time,
) -> Plan<AwsStep> {
    let web = ServiceKey::new("shop", "web");
    let service = intent.map_or(&web, |intent| &intent.service);
    plan(&settings(), service, intent, &model.seen, now)
}

/// Carries out plans until nothing is left to do; gives every plan in words.
pub(in crate::cloud::aws) fn converge(
    model: &mut Model,
    intent: Option<&Intent>,
    now: Time,
) -> Vec<String> {
    let mut plans = Vec::new();
    for _ in 0..20 {
        let plan = planned(intent, model, now);
        if plan.is_empty() {
            return plans;
        }
        plans.push(plan.to_string());
        for lane in Lane::ALL {
            for group in plan.runnable(lane) {
                group.steps.iter().for_each(|step| model.execute(step));
            }
        }
    }
    panic!("no end of plans: {}", plans.join("\n"));
}
