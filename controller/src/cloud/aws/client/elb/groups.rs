//! Writes of groups and their targets.

use aws_sdk_elasticloadbalancingv2::types as t;

use super::{Elb, made, members, write};
use crate::cloud::CloudError;
use crate::cloud::aws::client::convert::{check_port, group, matcher, number, pairs, tag_list};
use crate::cloud::aws::client::way::Way;
use crate::cloud::aws::model::{Attributes, Check, Group, TargetId};
use crate::cloud::aws::stack::GroupSpec;

impl Elb {
    /// Makes a group, or finds the one of this name with these settings.
    pub async fn create_group(&self, way: Way<'_>, spec: &GroupSpec) -> Result<Group, CloudError> {
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
        let answer = write(way, tried, request.send()).await?;
        let group = answer.target_groups().iter().find_map(group);
        made(group, tried, "target group")
    }

    /// Changes the numbers of a group's check.
    pub async fn modify_group(
        &self,
        way: Way<'_>,
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
            way,
            "elasticloadbalancing:ModifyTargetGroup",
            request.send(),
        )
        .await?;
        Ok(())
    }

    /// Sets attributes of a group; gives all of them.
    pub async fn set_group_attributes(
        &self,
        way: Way<'_>,
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
        let answer = write(way, tried, request.send()).await?;
        Ok(pairs(
            answer.attributes().iter().map(|a| (a.key(), a.value())),
        ))
    }

    /// Removes a group.
    pub async fn delete_group(&self, way: Way<'_>, arn: &str) -> Result<(), CloudError> {
        let request = self.client.delete_target_group().target_group_arn(arn);
        write(
            way,
            "elasticloadbalancing:DeleteTargetGroup",
            request.send(),
        )
        .await?;
        Ok(())
    }

    /// Registers targets, each perhaps with a zone.
    pub async fn register(
        &self,
        way: Way<'_>,
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
        members(way, "elasticloadbalancing:RegisterTargets", request.send()).await?;
        Ok(())
    }

    /// Deregisters targets.
    pub async fn deregister(
        &self,
        way: Way<'_>,
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
            way,
            "elasticloadbalancing:DeregisterTargets",
            request.send(),
        )
        .await?;
        Ok(())
    }
}
