//! `ELBv2` calls: one function each, typed both ways, behind the throttle. No decision is made here.

use std::collections::BTreeMap;
use std::future::Future;

use aws_sdk_elasticloadbalancingv2::Client;
use aws_sdk_elasticloadbalancingv2::error::{ProvideErrorMetadata, SdkError};
use aws_sdk_elasticloadbalancingv2::types as t;
use futures::FutureExt;
use futures::future::BoxFuture;

use super::convert::{
    balancer, certificates, check_port, default_certificate, forward, group, listener, mappings,
    matcher, number, pairs, tag_list, target,
};
use super::error::of_sdk;
use super::throttle::{Family, Throttle};
use crate::cloud::aws::model::{
    Attributes, Balancer, Check, Group, GroupProtocol, IpType, Listener, TargetHealth, TargetId,
};
use crate::cloud::aws::names::{Tags, scheme_word};
use crate::cloud::aws::stack::{BalancerSpec, GroupSpec, ListenerSpec, Mapping};
use crate::cloud::{Class, CloudError};

/// Most pages of one listing (AWS-707).
const PAGES: usize = 200;
/// Most ARNs of one call for tags.
const TAGS_AT_ONCE: usize = 20;

/// The client.
#[derive(Debug)]
pub struct Elb {
    client: Client,
}

impl Elb {
    /// Over a configured client.
    pub const fn new(client: Client) -> Self {
        Self { client }
    }

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
        let found = answer.load_balancers().iter().find_map(balancer);
        found.ok_or_else(|| {
            CloudError::new(Class::NotFound, tried, format!("no {arn} in the answer"))
        })
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

    /// Targets of a group with their health (AWS-428: asked without a zone).
    pub async fn targets(
        &self,
        throttle: &Throttle,
        group: &str,
    ) -> Result<BTreeMap<TargetId, TargetHealth>, CloudError> {
        let request = self.client.describe_target_health().target_group_arn(group);
        let tried = "elasticloadbalancing:DescribeTargetHealth";
        let answer = read(throttle, tried, request.send()).await?;
        Ok(answer
            .target_health_descriptions()
            .iter()
            .filter_map(target)
            .collect())
    }

    /// Makes a load balancer, or finds the one of this name with these settings.
    pub async fn create_balancer(
        &self,
        throttle: &Throttle,
        spec: &BalancerSpec,
        security_groups: Vec<String>,
    ) -> Result<Balancer, CloudError> {
        let tried = "elasticloadbalancing:CreateLoadBalancer";
        let groups = Some(security_groups).filter(|groups| !groups.is_empty());
        let request = self
            .client
            .create_load_balancer()
            .name(&spec.name)
            .r#type(t::LoadBalancerTypeEnum::Network)
            .scheme(t::LoadBalancerSchemeEnum::from(scheme_word(spec.scheme)))
            .ip_address_type(t::IpAddressType::from(spec.ip_type.as_str()))
            .set_subnet_mappings(Some(mappings(&spec.subnets)))
            .set_security_groups(groups)
            .set_tags(Some(tag_list(&spec.tags)));
        let answer = write(throttle, tried, request.send()).await?;
        let made = answer.load_balancers().iter().find_map(balancer);
        made.ok_or_else(|| {
            CloudError::new(Class::Transient, tried, "no load balancer in the answer")
        })
    }

    /// Sets attributes of a load balancer; gives all of them.
    pub async fn set_balancer_attributes(
        &self,
        throttle: &Throttle,
        arn: &str,
        attributes: &Attributes,
    ) -> Result<Attributes, CloudError> {
        let list = attributes.iter().map(|(key, value)| {
            t::LoadBalancerAttribute::builder()
                .key(key)
                .value(value)
                .build()
        });
        let request = self
            .client
            .modify_load_balancer_attributes()
            .load_balancer_arn(arn);
        let request = request.set_attributes(Some(list.collect()));
        let tried = "elasticloadbalancing:ModifyLoadBalancerAttributes";
        let answer = write(throttle, tried, request.send()).await?;
        Ok(pairs(
            answer.attributes().iter().map(|a| (a.key(), a.value())),
        ))
    }

    /// Sets the security groups of a load balancer.
    pub async fn set_security_groups(
        &self,
        throttle: &Throttle,
        arn: &str,
        groups: Vec<String>,
    ) -> Result<(), CloudError> {
        let request = self.client.set_security_groups().load_balancer_arn(arn);
        let request = request.set_security_groups(Some(groups));
        write(
            throttle,
            "elasticloadbalancing:SetSecurityGroups",
            request.send(),
        )
        .await?;
        Ok(())
    }

    /// Sets the subnets of a load balancer.
    pub async fn set_subnets(
        &self,
        throttle: &Throttle,
        arn: &str,
        subnets: &[Mapping],
    ) -> Result<(), CloudError> {
        let request = self.client.set_subnets().load_balancer_arn(arn);
        let request = request.set_subnet_mappings(Some(mappings(subnets)));
        write(throttle, "elasticloadbalancing:SetSubnets", request.send()).await?;
        Ok(())
    }

    /// Sets the family of a load balancer.
    pub async fn set_ip_type(
        &self,
        throttle: &Throttle,
        arn: &str,
        ip_type: IpType,
    ) -> Result<(), CloudError> {
        let request = self.client.set_ip_address_type().load_balancer_arn(arn);
        let request = request.ip_address_type(t::IpAddressType::from(ip_type.as_str()));
        write(
            throttle,
            "elasticloadbalancing:SetIpAddressType",
            request.send(),
        )
        .await?;
        Ok(())
    }

    /// Removes a load balancer.
    pub async fn delete_balancer(&self, throttle: &Throttle, arn: &str) -> Result<(), CloudError> {
        let request = self.client.delete_load_balancer().load_balancer_arn(arn);
        write(
            throttle,
            "elasticloadbalancing:DeleteLoadBalancer",
            request.send(),
        )
        .await?;
        Ok(())
    }

    /// Makes a group, or finds the one of this name with these settings.
    pub async fn create_group(
        &self,
        throttle: &Throttle,
        spec: &GroupSpec,
    ) -> Result<Group, CloudError> {
        let tried = "elasticloadbalancing:CreateTargetGroup";
        let check = &spec.check;
        let request = self
            .client
            .create_target_group()
            .name(&spec.name)
            .protocol(t::ProtocolEnum::from(spec.protocol.as_str()))
            .port(spec.port.into())
            .vpc_id(&spec.vpc)
            .target_type(t::TargetTypeEnum::from(spec.target.as_str()))
            .ip_address_type(t::TargetGroupIpAddressTypeEnum::from(spec.ip_type.as_str()))
            .health_check_enabled(true)
            .health_check_protocol(t::ProtocolEnum::from(check.protocol.as_str()))
            .health_check_port(check_port(check))
            .set_health_check_path(check.path.clone())
            .set_matcher(matcher(check))
            .health_check_interval_seconds(number(check.interval))
            .health_check_timeout_seconds(number(check.timeout))
            .healthy_threshold_count(number(check.healthy))
            .unhealthy_threshold_count(number(check.unhealthy))
            .set_tags(Some(tag_list(&spec.tags)));
        let answer = write(throttle, tried, request.send()).await?;
        let made = answer.target_groups().iter().find_map(group);
        made.ok_or_else(|| {
            CloudError::new(Class::Transient, tried, "no target group in the answer")
        })
    }

    /// Changes the numbers of a group's check.
    pub async fn modify_group(
        &self,
        throttle: &Throttle,
        arn: &str,
        check: &Check,
    ) -> Result<(), CloudError> {
        let request = self
            .client
            .modify_target_group()
            .target_group_arn(arn)
            .set_health_check_path(check.path.clone())
            .set_matcher(matcher(check))
            .health_check_interval_seconds(number(check.interval))
            .health_check_timeout_seconds(number(check.timeout))
            .healthy_threshold_count(number(check.healthy))
            .unhealthy_threshold_count(number(check.unhealthy));
        write(
            throttle,
            "elasticloadbalancing:ModifyTargetGroup",
            request.send(),
        )
        .await?;
        Ok(())
    }

    /// Sets attributes of a group; gives all of them.
    pub async fn set_group_attributes(
        &self,
        throttle: &Throttle,
        arn: &str,
        attributes: &Attributes,
    ) -> Result<Attributes, CloudError> {
        let list = attributes.iter().map(|(key, value)| {
            t::TargetGroupAttribute::builder()
                .key(key)
                .value(value)
                .build()
        });
        let request = self
            .client
            .modify_target_group_attributes()
            .target_group_arn(arn);
        let request = request.set_attributes(Some(list.collect()));
        let tried = "elasticloadbalancing:ModifyTargetGroupAttributes";
        let answer = write(throttle, tried, request.send()).await?;
        Ok(pairs(
            answer.attributes().iter().map(|a| (a.key(), a.value())),
        ))
    }

    /// Removes a group.
    pub async fn delete_group(&self, throttle: &Throttle, arn: &str) -> Result<(), CloudError> {
        let request = self.client.delete_target_group().target_group_arn(arn);
        write(
            throttle,
            "elasticloadbalancing:DeleteTargetGroup",
            request.send(),
        )
        .await?;
        Ok(())
    }

    /// Registers targets, each perhaps with a zone.
    pub async fn register(
        &self,
        throttle: &Throttle,
        group: &str,
        targets: &[(TargetId, Option<String>)],
    ) -> Result<(), CloudError> {
        let list = targets.iter().map(|(target, zone)| {
            let of = t::TargetDescription::builder()
                .id(&target.id)
                .port(target.port.into());
            of.set_availability_zone(zone.clone()).build()
        });
        let request = self.client.register_targets().target_group_arn(group);
        let request = request.set_targets(Some(list.collect()));
        members(
            throttle,
            "elasticloadbalancing:RegisterTargets",
            request.send(),
        )
        .await?;
        Ok(())
    }

    /// Deregisters targets.
    pub async fn deregister(
        &self,
        throttle: &Throttle,
        group: &str,
        targets: &[TargetId],
    ) -> Result<(), CloudError> {
        let list = targets.iter().map(|target| {
            t::TargetDescription::builder()
                .id(&target.id)
                .port(target.port.into())
                .build()
        });
        let request = self.client.deregister_targets().target_group_arn(group);
        let request = request.set_targets(Some(list.collect()));
        members(
            throttle,
            "elasticloadbalancing:DeregisterTargets",
            request.send(),
        )
        .await?;
        Ok(())
    }

    /// Makes a listener.
    pub async fn create_listener(
        &self,
        throttle: &Throttle,
        balancer: &str,
        spec: &ListenerSpec,
        group: &str,
    ) -> Result<Listener, CloudError> {
        let tried = "elasticloadbalancing:CreateListener";
        let request = self
            .client
            .create_listener()
            .load_balancer_arn(balancer)
            .port(spec.port.into())
            .protocol(t::ProtocolEnum::from(spec.protocol.as_str()))
            .set_ssl_policy(spec.policy.clone())
            .set_certificates(default_certificate(spec))
            .set_alpn_policy(spec.alpn.clone().map(|alpn| vec![alpn]))
            .default_actions(forward(&[(group.to_owned(), 1)].into()))
            .set_tags(Some(tag_list(&spec.tags)));
        let answer = write(throttle, tried, request.send()).await?;
        let made = answer.listeners().iter().find_map(listener);
        made.ok_or_else(|| CloudError::new(Class::Transient, tried, "no listener in the answer"))
    }

    /// Changes a listener; `groups` by ARN with weights.
    pub async fn modify_listener(
        &self,
        throttle: &Throttle,
        arn: &str,
        spec: &ListenerSpec,
        groups: &BTreeMap<String, u32>,
    ) -> Result<Listener, CloudError> {
        let tried = "elasticloadbalancing:ModifyListener";
        let request = self
            .client
            .modify_listener()
            .listener_arn(arn)
            .protocol(t::ProtocolEnum::from(spec.protocol.as_str()))
            .set_ssl_policy(spec.policy.clone())
            .set_certificates(default_certificate(spec))
            .set_alpn_policy(spec.alpn.clone().map(|alpn| vec![alpn]))
            .default_actions(forward(groups));
        let answer = write(throttle, tried, request.send()).await?;
        let made = answer.listeners().iter().find_map(listener);
        made.ok_or_else(|| CloudError::new(Class::Transient, tried, "no listener in the answer"))
    }

    /// Sets attributes of a listener; gives all of them.
    pub async fn set_listener_attributes(
        &self,
        throttle: &Throttle,
        arn: &str,
        attributes: &Attributes,
    ) -> Result<Attributes, CloudError> {
        let list = attributes.iter().map(|(key, value)| {
            t::ListenerAttribute::builder()
                .key(key)
                .value(value)
                .build()
        });
        let request = self.client.modify_listener_attributes().listener_arn(arn);
        let request = request.set_attributes(Some(list.collect()));
        let tried = "elasticloadbalancing:ModifyListenerAttributes";
        let answer = write(throttle, tried, request.send()).await?;
        Ok(pairs(
            answer.attributes().iter().map(|a| (a.key(), a.value())),
        ))
    }

    /// Adds certificates to a listener.
    pub async fn add_certificates(
        &self,
        throttle: &Throttle,
        arn: &str,
        more: &[String],
    ) -> Result<(), CloudError> {
        let request = self.client.add_listener_certificates().listener_arn(arn);
        let request = request.set_certificates(Some(certificates(more)));
        write(
            throttle,
            "elasticloadbalancing:AddListenerCertificates",
            request.send(),
        )
        .await?;
        Ok(())
    }

    /// Removes certificates from a listener.
    pub async fn remove_certificates(
        &self,
        throttle: &Throttle,
        arn: &str,
        old: &[String],
    ) -> Result<(), CloudError> {
        let request = self.client.remove_listener_certificates().listener_arn(arn);
        let request = request.set_certificates(Some(certificates(old)));
        write(
            throttle,
            "elasticloadbalancing:RemoveListenerCertificates",
            request.send(),
        )
        .await?;
        Ok(())
    }

    /// Removes a listener.
    pub async fn delete_listener(&self, throttle: &Throttle, arn: &str) -> Result<(), CloudError> {
        let request = self.client.delete_listener().listener_arn(arn);
        write(
            throttle,
            "elasticloadbalancing:DeleteListener",
            request.send(),
        )
        .await?;
        Ok(())
    }

    /// Sets tags of objects.
    pub async fn add_tags(
        &self,
        throttle: &Throttle,
        arns: &[String],
        tags: &Tags,
    ) -> Result<(), CloudError> {
        for some in arns.chunks(TAGS_AT_ONCE) {
            let request = self.client.add_tags();
            let request = request.set_resource_arns(Some(some.to_vec()));
            let request = request.set_tags(Some(tag_list(tags)));
            write(throttle, "elasticloadbalancing:AddTags", request.send()).await?;
        }
        Ok(())
    }

    /// Removes tags of objects.
    pub async fn remove_tags(
        &self,
        throttle: &Throttle,
        arns: &[String],
        keys: &[String],
    ) -> Result<(), CloudError> {
        for some in arns.chunks(TAGS_AT_ONCE) {
            let request = self.client.remove_tags();
            let request = request.set_resource_arns(Some(some.to_vec()));
            let request = request.set_tag_keys(Some(keys.to_vec()));
            write(throttle, "elasticloadbalancing:RemoveTags", request.send()).await?;
        }
        Ok(())
    }
}

/// A call on the heap: the client nests a future for each of its layers.
type Answered<'a, T> = BoxFuture<'a, Result<T, CloudError>>;

fn read<'a, T: 'a, E: Refused>(
    throttle: &'a Throttle,
    tried: &'a str,
    call: impl Future<Output = Result<T, SdkError<E>>> + Send + 'a,
) -> Answered<'a, T> {
    of_family(throttle, Family::Describe, tried, call).boxed()
}

fn write<'a, T: 'a, E: Refused>(
    throttle: &'a Throttle,
    tried: &'a str,
    call: impl Future<Output = Result<T, SdkError<E>>> + Send + 'a,
) -> Answered<'a, T> {
    of_family(throttle, Family::Change, tried, call).boxed()
}

fn members<'a, T: 'a, E: Refused>(
    throttle: &'a Throttle,
    tried: &'a str,
    call: impl Future<Output = Result<T, SdkError<E>>> + Send + 'a,
) -> Answered<'a, T> {
    of_family(throttle, Family::Members, tried, call).boxed()
}

/// What every operation's error type is.
trait Refused: ProvideErrorMetadata + std::error::Error + Send + 'static {}

impl<E: ProvideErrorMetadata + std::error::Error + Send + 'static> Refused for E {}

async fn of_family<T, E: Refused>(
    throttle: &Throttle,
    family: Family,
    tried: &str,
    call: impl Future<Output = Result<T, SdkError<E>>>,
) -> Result<T, CloudError> {
    throttle.pass(family).await;
    call.await.map_err(|error| {
        let error = of_sdk(tried, &error);
        if error.class == Class::Throttled {
            throttle.refused(family);
        }
        error
    })
}

/// Pages of one listing: bounded, and never the same one twice (AWS-707).
struct Pages {
    tried: &'static str,
    count: usize,
    marker: Option<String>,
    ended: bool,
    repeats: bool,
}

impl Pages {
    const fn new(tried: &'static str) -> Self {
        Self {
            tried,
            count: 0,
            marker: None,
            ended: false,
            repeats: false,
        }
    }

    /// The marker of the next page, or none when all were read.
    #[allow(clippy::option_option, reason = "the first page has no marker")]
    fn next(&mut self) -> Result<Option<Option<String>>, CloudError> {
        if self.ended {
            return Ok(None);
        }
        if self.repeats || self.count >= PAGES {
            let what = format!("its pages do not end: {} were read", self.count);
            return Err(CloudError::new(Class::Transient, self.tried, what));
        }
        self.count += 1;
        Ok(Some(self.marker.clone()))
    }

    fn seen(&mut self, next: Option<&str>) {
        let next = next.filter(|marker| !marker.is_empty()).map(str::to_owned);
        self.ended = next.is_none();
        self.repeats = next.is_some() && next == self.marker;
        self.marker = next;
    }
}
