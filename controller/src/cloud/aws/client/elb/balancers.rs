//! Writes of load balancers.

use aws_sdk_elasticloadbalancingv2::types as t;

use super::{Elb, made, write};
use crate::cloud::CloudError;
use crate::cloud::aws::client::convert::{balancer, mappings, pairs, tag_list};
use crate::cloud::aws::client::way::Way;
use crate::cloud::aws::model::{Attributes, Balancer, IpType};
use crate::cloud::aws::names::scheme_word;
use crate::cloud::aws::stack::{BalancerSpec, Mapping};

impl Elb {
    /// Makes a load balancer, or finds the one of this name with these settings.
    pub async fn create_balancer(
        &self,
        way: Way<'_>,
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
        let answer = write(way, tried, request.send()).await?;
        let balancer = answer.load_balancers().iter().find_map(balancer);
        made(balancer, tried, "load balancer")
    }

    /// Sets attributes of a load balancer; gives all of them.
    pub async fn set_balancer_attributes(
        &self,
        way: Way<'_>,
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
        let answer = write(way, tried, request.send()).await?;
        Ok(pairs(
            answer.attributes().iter().map(|a| (a.key(), a.value())),
        ))
    }

    /// Sets the security groups of a load balancer.
    pub async fn set_security_groups(
        &self,
        way: Way<'_>,
        arn: &str,
        groups: Vec<String>,
    ) -> Result<(), CloudError> {
        let request = self.client.set_security_groups().load_balancer_arn(arn);
        let request = request.set_security_groups(Some(groups));
        write(
            way,
            "elasticloadbalancing:SetSecurityGroups",
            request.send(),
        )
        .await?;
        Ok(())
    }

    /// Sets the subnets of a load balancer.
    pub async fn set_subnets(
        &self,
        way: Way<'_>,
        arn: &str,
        subnets: &[Mapping],
    ) -> Result<(), CloudError> {
        let request = self.client.set_subnets().load_balancer_arn(arn);
        let request = request.set_subnet_mappings(Some(mappings(subnets)));
        write(way, "elasticloadbalancing:SetSubnets", request.send()).await?;
        Ok(())
    }

    /// Sets the family of a load balancer.
    pub async fn set_ip_type(
        &self,
        way: Way<'_>,
        arn: &str,
        ip_type: IpType,
    ) -> Result<(), CloudError> {
        let request = self.client.set_ip_address_type().load_balancer_arn(arn);
        let request = request.ip_address_type(t::IpAddressType::from(ip_type.as_str()));
        write(way, "elasticloadbalancing:SetIpAddressType", request.send()).await?;
        Ok(())
    }

    /// Removes a load balancer.
    pub async fn delete_balancer(&self, way: Way<'_>, arn: &str) -> Result<(), CloudError> {
        let request = self.client.delete_load_balancer().load_balancer_arn(arn);
        write(
            way,
            "elasticloadbalancing:DeleteLoadBalancer",
            request.send(),
        )
        .await?;
        Ok(())
    }
}
