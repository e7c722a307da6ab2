//! Writes of listeners.

use std::collections::BTreeMap;

use aws_sdk_elasticloadbalancingv2::types as t;

use super::{Elb, made, write};
use crate::cloud::CloudError;
use crate::cloud::aws::client::convert::{
    certificates, default_certificate, forward, listener, pairs, tag_list,
};
use crate::cloud::aws::client::way::Way;
use crate::cloud::aws::model::{Attributes, Listener};
use crate::cloud::aws::stack::ListenerSpec;

impl Elb {
    /// Makes a listener.
    pub async fn create_listener(
        &self,
        way: Way<'_>,
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
        let answer = write(way, tried, request.send()).await?;
        let listener = answer.listeners().iter().find_map(listener);
        made(listener, tried, "listener")
    }

    /// Changes a listener; `groups` by ARN with weights.
    pub async fn modify_listener(
        &self,
        way: Way<'_>,
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
        let answer = write(way, tried, request.send()).await?;
        let listener = answer.listeners().iter().find_map(listener);
        made(listener, tried, "listener")
    }

    /// Sets attributes of a listener; gives all of them.
    pub async fn set_listener_attributes(
        &self,
        way: Way<'_>,
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
        let answer = write(way, tried, request.send()).await?;
        Ok(pairs(
            answer.attributes().iter().map(|a| (a.key(), a.value())),
        ))
    }

    /// Adds certificates to a listener.
    pub async fn add_certificates(
        &self,
        way: Way<'_>,
        arn: &str,
        more: &[String],
    ) -> Result<(), CloudError> {
        let request = self.client.add_listener_certificates().listener_arn(arn);
        let request = request.set_certificates(Some(certificates(more)));
        write(
            way,
            "elasticloadbalancing:AddListenerCertificates",
            request.send(),
        )
        .await?;
        Ok(())
    }

    /// Removes certificates from a listener.
    pub async fn remove_certificates(
        &self,
        way: Way<'_>,
        arn: &str,
        old: &[String],
    ) -> Result<(), CloudError> {
        let request = self.client.remove_listener_certificates().listener_arn(arn);
        let request = request.set_certificates(Some(certificates(old)));
        write(
            way,
            "elasticloadbalancing:RemoveListenerCertificates",
            request.send(),
        )
        .await?;
        Ok(())
    }

    /// Removes a listener.
    pub async fn delete_listener(&self, way: Way<'_>, arn: &str) -> Result<(), CloudError> {
        let request = self.client.delete_listener().listener_arn(arn);
        write(way, "elasticloadbalancing:DeleteListener", request.send()).await?;
        Ok(())
    }
}
