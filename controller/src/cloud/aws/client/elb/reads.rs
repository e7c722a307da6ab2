//! Reads: listings, page by page, and single objects.

use std::collections::BTreeMap;

use aws_sdk_elasticloadbalancingv2::types as t;

use futures::FutureExt;

use super::{Elb, Pages, TAGS_AT_ONCE, answered, found, read};
use crate::cloud::CloudError;
use crate::cloud::aws::client::convert::{balancer, group, listener, pairs, target};
use crate::cloud::aws::client::throttle::{Family, Throttle};
use crate::cloud::aws::model::{
    Attributes, Balancer, Group, GroupProtocol, Listener, TargetHealth, TargetId,
};
use crate::cloud::aws::names::Tags;

impl Elb {
    /// Every load balancer of a VPC that is of our kind, without tags.
    pub async fn balancers(
        &self,
        throttle: &Throttle,
        vpc: &str,
    ) -> Result<Vec<Balancer>, CloudError> {
        let (mut all, mut pages) = (
            Vec::new(),
            Pages::new("elasticloadbalancing:DescribeLoadBalancers"),
        );
        while let Some(marker) = pages.next()? {
            let request = self
                .client
                .describe_load_balancers()
                .set_marker(marker)
                .page_size(400);
            let answer = read(throttle, pages.tried, request.send()).await?;
            let here = answer.load_balancers().iter();
            let ours = here.filter(|b| {
                b.vpc_id() == Some(vpc) && b.r#type() == Some(&t::LoadBalancerTypeEnum::Network)
            });
            all.extend(ours.filter_map(balancer));
            pages.seen(answer.next_marker());
        }
        Ok(all)
    }

    /// One load balancer by ARN, without tags.
    pub async fn balancer(&self, throttle: &Throttle, arn: &str) -> Result<Balancer, CloudError> {
        let tried = "elasticloadbalancing:DescribeLoadBalancers";
        let request = self
            .client
            .describe_load_balancers()
            .load_balancer_arns(arn);
        let answer = read(throttle, tried, request.send()).await?;
        let balancer = answer.load_balancers().iter().find_map(balancer);
        found(balancer, tried, arn)
    }

    /// One load balancer by name, without tags.
    pub async fn balancer_named(
        &self,
        throttle: &Throttle,
        name: &str,
    ) -> Result<Balancer, CloudError> {
        let tried = "elasticloadbalancing:DescribeLoadBalancers";
        let request = self.client.describe_load_balancers().names(name);
        let answer = read(throttle, tried, request.send()).await?;
        let balancer = answer.load_balancers().iter().find_map(balancer);
        found(balancer, tried, name)
    }

    /// One group by name, without tags.
    pub async fn group_named(&self, throttle: &Throttle, name: &str) -> Result<Group, CloudError> {
        let tried = "elasticloadbalancing:DescribeTargetGroups";
        let request = self.client.describe_target_groups().names(name);
        let answer = read(throttle, tried, request.send()).await?;
        let group = answer.target_groups().iter().find_map(group);
        found(group, tried, name)
    }

    /// Every group of a VPC, without tags.
    pub async fn groups(&self, throttle: &Throttle, vpc: &str) -> Result<Vec<Group>, CloudError> {
        let (mut all, mut pages) = (
            Vec::new(),
            Pages::new("elasticloadbalancing:DescribeTargetGroups"),
        );
        while let Some(marker) = pages.next()? {
            let request = self
                .client
                .describe_target_groups()
                .set_marker(marker)
                .page_size(400);
            let answer = read(throttle, pages.tried, request.send()).await?;
            let here = answer.target_groups().iter();
            all.extend(here.filter(|g| g.vpc_id() == Some(vpc)).filter_map(group));
            pages.seen(answer.next_marker());
        }
        Ok(all)
    }

    /// Whether a group is there.
    pub async fn one_group(&self, throttle: &Throttle, arn: &str) -> Result<(), CloudError> {
        let request = self.client.describe_target_groups().target_group_arns(arn);
        let tried = "elasticloadbalancing:DescribeTargetGroups";
        read(throttle, tried, request.send()).await.map(drop)
    }

    /// Tags of objects, by ARN.
    pub async fn tags(
        &self,
        throttle: &Throttle,
        arns: &[String],
    ) -> Result<BTreeMap<String, Tags>, CloudError> {
        let mut all = BTreeMap::new();
        for some in arns.chunks(TAGS_AT_ONCE) {
            let request = self
                .client
                .describe_tags()
                .set_resource_arns(Some(some.to_vec()));
            let answer = read(
                throttle,
                "elasticloadbalancing:DescribeTags",
                request.send(),
            )
            .await?;
            for of in answer.tag_descriptions() {
                let tags = of.tags().iter().map(|tag| {
                    let key = tag.key().unwrap_or_default().to_owned();
                    (key, tag.value().unwrap_or_default().to_owned())
                });
                all.insert(
                    of.resource_arn().unwrap_or_default().to_owned(),
                    tags.collect(),
                );
            }
        }
        Ok(all)
    }

    /// Listeners of a load balancer, by port. Certificates beside the default one are read for TLS.
    pub async fn listeners(
        &self,
        throttle: &Throttle,
        balancer: &str,
    ) -> Result<BTreeMap<u16, Listener>, CloudError> {
        let (mut all, mut pages) = (
            BTreeMap::new(),
            Pages::new("elasticloadbalancing:DescribeListeners"),
        );
        while let Some(marker) = pages.next()? {
            let request = self
                .client
                .describe_listeners()
                .load_balancer_arn(balancer)
                .set_marker(marker);
            let answer = read(throttle, pages.tried, request.send()).await?;
            all.extend(
                answer
                    .listeners()
                    .iter()
                    .filter_map(listener)
                    .map(|l| (l.port, l)),
            );
            pages.seen(answer.next_marker());
        }
        let tls = all
            .values_mut()
            .filter(|l: &&mut Listener| l.protocol == GroupProtocol::Tls);
        for listener in tls {
            let more = self.more_certificates(throttle, &listener.arn).await?;
            listener.certificates.extend(more);
        }
        Ok(all)
    }

    /// Certificates of a TLS listener beside the default one.
    pub async fn more_certificates(
        &self,
        throttle: &Throttle,
        listener: &str,
    ) -> Result<Vec<String>, CloudError> {
        let tried = "elasticloadbalancing:DescribeListenerCertificates";
        let (mut all, mut pages) = (Vec::new(), Pages::new(tried));
        while let Some(marker) = pages.next()? {
            let request = self
                .client
                .describe_listener_certificates()
                .listener_arn(listener);
            let answer = read(throttle, tried, request.set_marker(marker).send()).await?;
            let more = answer
                .certificates()
                .iter()
                .filter(|c| c.is_default() != Some(true));
            all.extend(more.filter_map(|c| Some(c.certificate_arn()?.to_owned())));
            pages.seen(answer.next_marker());
        }
        Ok(all)
    }

    /// Attributes of a load balancer.
    pub async fn balancer_attributes(
        &self,
        throttle: &Throttle,
        arn: &str,
    ) -> Result<Attributes, CloudError> {
        let request = self
            .client
            .describe_load_balancer_attributes()
            .load_balancer_arn(arn);
        let tried = "elasticloadbalancing:DescribeLoadBalancerAttributes";
        let answer = read(throttle, tried, request.send()).await?;
        Ok(pairs(
            answer.attributes().iter().map(|a| (a.key(), a.value())),
        ))
    }

    /// Attributes of a group.
    pub async fn group_attributes(
        &self,
        throttle: &Throttle,
        arn: &str,
    ) -> Result<Attributes, CloudError> {
        let request = self
            .client
            .describe_target_group_attributes()
            .target_group_arn(arn);
        let tried = "elasticloadbalancing:DescribeTargetGroupAttributes";
        let answer = read(throttle, tried, request.send()).await?;
        Ok(pairs(
            answer.attributes().iter().map(|a| (a.key(), a.value())),
        ))
    }

    /// Targets of a group with their health (AWS-428: asked without a zone). Its token is the caller's to take: what is
    /// only looked at again can do without.
    pub async fn targets(
        &self,
        throttle: &Throttle,
        group: &str,
    ) -> Result<BTreeMap<TargetId, TargetHealth>, CloudError> {
        let request = self.client.describe_target_health().target_group_arn(group);
        let tried = "elasticloadbalancing:DescribeTargetHealth";
        let answer = request.send().boxed().await;
        let answer = answered(throttle, Family::Describe, tried, answer)?;
        Ok(answer
            .target_health_descriptions()
            .iter()
            .filter_map(target)
            .collect())
    }
}
