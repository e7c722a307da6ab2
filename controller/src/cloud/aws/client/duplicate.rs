//! A name that is taken by an object with other settings: whose it is, and what differs (AWS-117).

use std::fmt::Display;

use super::error::has_code;
use super::{Client, owner_words};
use crate::cloud::CloudError;
use crate::cloud::aws::model::{Balancer, Group};
use crate::cloud::aws::names::scheme_word;
use crate::cloud::aws::stack::{BalancerSpec, GroupSpec};

/// What differs, each as what it is there and what it should be.
#[derive(Default)]
struct Differences(Vec<String>);

impl Differences {
    fn note<T: PartialEq + Display>(&mut self, what: &str, there: T, wanted: T) {
        if there != wanted {
            self.0.push(format!("{what} {there} instead of {wanted}"));
        }
    }
}

fn of_balancer(there: &Balancer, wanted: &BalancerSpec) -> Differences {
    let mut all = Differences::default();
    let (has, should) = (scheme_word(there.scheme), scheme_word(wanted.scheme));
    all.note("scheme", has, should);
    all.note("IP address type", there.ip_type, wanted.ip_type);
    let subnets: Vec<_> = there.subnets.keys().map(String::as_str).collect();
    let mut should: Vec<_> = wanted.subnets.iter().map(|m| m.subnet.as_str()).collect();
    should.sort_unstable();
    all.note("subnets", subnets.join(" "), should.join(" "));
    all
}

fn of_group(there: &Group, wanted: &GroupSpec) -> Differences {
    let mut all = Differences::default();
    all.note("target type", there.target.as_str(), wanted.target.as_str());
    let (has, should) = (there.protocol.as_str(), wanted.protocol.as_str());
    all.note("protocol", has, should);
    all.note("port", there.port, wanted.port);
    let (has, should) = (&there.check, &wanted.check);
    let (is, wants) = (has.protocol.as_str(), should.protocol.as_str());
    all.note("protocol of the health check", is, wants);
    let interval = "interval of the health check";
    all.note(interval, has.interval, should.interval);
    all
}

impl Client {
    /// The refusal of a load balancer's create with what is known of the one that has its name.
    pub(super) async fn explained_balancer(
        &self,
        error: CloudError,
        wanted: &BalancerSpec,
    ) -> CloudError {
        if !has_code(&error, "DuplicateLoadBalancerName") {
            return error;
        }
        match self.elb.balancer_named(&self.throttle, &wanted.name).await {
            Ok(there) => {
                let differences = of_balancer(&there, wanted);
                self.explained(error, &there.arn, &differences).await
            }
            // The refusal itself says more than that it could not be explained.
            Err(_) => error,
        }
    }

    /// The same of a group.
    pub(super) async fn explained_group(
        &self,
        error: CloudError,
        wanted: &GroupSpec,
    ) -> CloudError {
        if !has_code(&error, "DuplicateTargetGroupName") {
            return error;
        }
        match self.elb.group_named(&self.throttle, &wanted.name).await {
            Ok(there) => {
                let differences = of_group(&there, wanted);
                self.explained(error, &there.arn, &differences).await
            }
            Err(_) => error,
        }
    }

    async fn explained(
        &self,
        mut error: CloudError,
        arn: &str,
        differences: &Differences,
    ) -> CloudError {
        let tags = self.elb.tags(&self.throttle, &[arn.to_owned()]).await;
        let owner = match tags {
            Ok(mut tags) => owner_words(&tags.remove(arn).unwrap_or_default()),
            Err(_) => "somebody whose tags cannot be read".to_owned(),
        };
        let differences = differences.0.join(", ");
        error.answer = format!(
            "{}; the name is taken by {arn} of {owner}, which has {differences}; it is left alone",
            error.answer
        );
        error
    }
}
