//! Listeners: which groups the new flows of a port go to, by weight. Of several groups one has the weight;
//! those with none are attached so that their targets are checked.

use std::collections::{BTreeMap, BTreeSet};

use super::account::Listener;
use super::certificates::tls_xml;
use super::error::Refusal;
use super::tags;
use super::xml::{el, members, wrap};
use super::{Answer, Call};

const DEFAULTS: [(&str, &str); 1] = [("tcp.idle_timeout.seconds", "350")];

impl Call<'_> {
    pub(super) fn create_listener(&mut self) -> Answer {
        let balancer = self.form.need("LoadBalancerArn")?.to_owned();
        let lb = self.account.balancer(&balancer)?.clone();
        let port = self.form.number("Port", (1, 65535_u16))?;
        let port = port.ok_or_else(|| Refusal::validation("Port is missing"))?;
        let protocol = self.form.need("Protocol")?.to_owned();
        check_protocol(&protocol)?;
        let groups = self.actions()?;
        let twin = self
            .account
            .listeners
            .values()
            .any(|l| l.balancer == balancer && l.port == port);
        if twin {
            let message = format!(
                "A listener already exists on this port for this load balancer '{balancer}'"
            );
            return Err(Refusal::new("DuplicateListener", message));
        }
        self.check_use(&balancer, &protocol, &groups)?;
        let tls = self.tls(&protocol, None)?;
        let tags = self.form.pairs("Tags");
        tags::check(&tags)?;
        let number = self.account.next_number();
        let stem = lb.arn.rsplit("loadbalancer/").next().unwrap_or_default();
        let listener = Listener {
            arn: self.account.arn(&format!("listener/{stem}/{number:016x}")),
            balancer,
            port,
            protocol,
            groups,
            certificates: tls.certificates,
            policy: tls.policy,
            alpn: tls.alpn,
            attributes: DEFAULTS.map(|(k, v)| (k.to_owned(), v.to_owned())).into(),
            tags,
        };
        self.point(&listener)?;
        self.account
            .listeners
            .insert(listener.arn.clone(), listener.clone());
        Ok(members("Listeners", [listener_xml(&listener)].into_iter()))
    }

    /// The groups of the call's one forward action, with their weights.
    fn actions(&mut self) -> Result<BTreeMap<String, u32>, Refusal> {
        let actions = self.form.entries("DefaultActions");
        let [action] = actions.as_slice() else {
            return Err(Refusal::validation("one default action must be specified"));
        };
        if self.form.text(&format!("{action}.Type")) != "forward" {
            return Err(Refusal::new(
                "InvalidLoadBalancerAction",
                "a network load balancer forwards only",
            ));
        }
        let mut groups = BTreeMap::new();
        if let Some(arn) = self.form.maybe(&format!("{action}.TargetGroupArn")) {
            groups.insert(arn.to_owned(), 1);
        }
        for stem in self
            .form
            .entries(&format!("{action}.ForwardConfig.TargetGroups"))
        {
            let arn = self
                .form
                .need(&format!("{stem}.TargetGroupArn"))?
                .to_owned();
            let weight = self
                .form
                .number(&format!("{stem}.Weight"), (0, 999))?
                .unwrap_or(1);
            groups.insert(arn, weight);
        }
        if groups.is_empty() || groups.len() > 5 {
            return Err(Refusal::validation(
                "one to five target groups must be specified",
            ));
        }
        if groups.values().filter(|weight| **weight > 0).count() != 1 {
            let message = "this cloud's data path sends to one group of a listener: give the others no weight";
            return Err(Refusal::new("InvalidLoadBalancerAction", message));
        }
        for arn in groups.keys() {
            self.account.group(arn)?;
        }
        Ok(groups)
    }

    /// A group is of one load balancer (AWS-756), and of the listener's protocol.
    fn check_use(
        &mut self,
        balancer: &str,
        protocol: &str,
        groups: &BTreeMap<String, u32>,
    ) -> Result<(), Refusal> {
        for arn in groups.keys() {
            let other = self
                .account
                .users(arn)
                .into_iter()
                .find(|user| user != balancer);
            if other.is_some() {
                let message = format!(
                    "The target group '{arn}' cannot be associated with more than one load balancer"
                );
                return Err(Refusal::new("TargetGroupAssociationLimit", message));
            }
            let of = &self.account.group(arn)?.protocol;
            // TLS ends at the listener, whatever is spoken behind it.
            if of != protocol && (protocol, of.as_str()) != ("TLS", "TCP") {
                let message =
                    format!("The target group is of protocol {of}, the listener of {protocol}");
                return Err(Refusal::new("IncompatibleProtocols", message));
            }
        }
        Ok(())
    }

    /// Makes the engine's listeners send as a listener says.
    fn point(&mut self, listener: &Listener) -> Result<(), Refusal> {
        let lb = self.account.balancer(&listener.balancer)?.engine.clone();
        for (index, key) in listener.keys().into_iter().enumerate() {
            let mut standby = BTreeSet::new();
            let mut main = None;
            for (arn, weight) in &listener.groups {
                let id = self.engine_groups(arn)?.get(index).cloned();
                let id = id.ok_or_else(|| Refusal::new("TargetGroupNotFound", "gone"))?;
                if *weight > 0 {
                    main = Some(id);
                } else {
                    standby.insert(id);
                }
            }
            let main = main.ok_or_else(|| Refusal::validation("no group has a weight"))?;
            let first = listener.certificates.first();
            let certificate = first.and_then(|arn| self.account.certificates.get(arn));
            let certificate = certificate.cloned();
            self.cloud.with(|engine, now| {
                engine.put_listener(now, &lb, key, &main)?;
                engine.set_tls(now, &lb, key, certificate)?;
                engine.set_standby(now, &lb, key, standby)
            })?;
        }
        Ok(())
    }

    pub(super) fn describe_listeners(&mut self) -> Answer {
        let arns = self.form.list("ListenerArns");
        for arn in &arns {
            self.account.listener(arn)?;
        }
        let of = self.form.maybe("LoadBalancerArn").map(str::to_owned);
        if let Some(of) = &of {
            self.account.balancer(of)?;
        } else if arns.is_empty() {
            return Err(Refusal::validation(
                "a load balancer or listeners must be specified",
            ));
        }
        let asked = |l: &&Listener| {
            of.as_ref().is_none_or(|of| l.balancer == *of)
                && (arns.is_empty() || arns.contains(&l.arn.as_str()))
        };
        let all: Vec<Listener> = self
            .account
            .listeners
            .values()
            .filter(asked)
            .cloned()
            .collect();
        let (page, next) = self.page(all, |listener| &listener.arn)?;
        Ok(members("Listeners", page.iter().map(listener_xml)) + &next)
    }

    pub(super) fn modify_listener(&mut self) -> Answer {
        let arn = self.form.need("ListenerArn")?.to_owned();
        let before = self.account.listener(&arn)?.clone();
        let mut after = before.clone();
        if let Some(protocol) = self.form.maybe("Protocol") {
            check_protocol(protocol)?;
            protocol.clone_into(&mut after.protocol);
        }
        let tls = self.tls(&after.protocol, Some(&before))?;
        after.certificates = tls.certificates;
        after.policy = tls.policy;
        after.alpn = tls.alpn;
        if !self.form.entries("DefaultActions").is_empty() {
            after.groups = self.actions()?;
        }
        self.check_use(&after.balancer, &after.protocol, &after.groups)?;
        let lb = self.account.balancer(&after.balancer)?.engine.clone();
        for gone in before
            .keys()
            .into_iter()
            .filter(|key| !after.keys().contains(key))
        {
            self.cloud
                .with(|engine, now| engine.delete_listener(now, &lb, gone))?;
        }
        self.point(&after)?;
        self.account.listeners.insert(arn, after.clone());
        Ok(members("Listeners", [listener_xml(&after)].into_iter()))
    }

    pub(super) fn delete_listener(&mut self) -> Answer {
        let arn = self.form.need("ListenerArn")?.to_owned();
        let listener = self.account.listener(&arn)?.clone();
        let lb = self.account.balancer(&listener.balancer)?.engine.clone();
        for key in listener.keys() {
            self.cloud
                .with(|engine, now| engine.delete_listener(now, &lb, key))?;
        }
        self.account.listeners.remove(&arn);
        Ok(String::new())
    }

    pub(super) fn listener_attributes(&mut self) -> Answer {
        let arn = self.form.need("ListenerArn")?;
        Ok(tags::attributes(&self.account.listener(arn)?.attributes))
    }

    pub(super) fn set_listener_attributes(&mut self) -> Answer {
        let arn = self.form.need("ListenerArn")?;
        let asked = self.form.pairs("Attributes");
        super::balancers::check_attributes(&asked, &DEFAULTS)?;
        if asked
            .values()
            .any(|v| !v.parse::<u32>().is_ok_and(|s| (60..=6000).contains(&s)))
        {
            return Err(Refusal::validation(
                "tcp.idle_timeout.seconds must be from 60 to 6000",
            ));
        }
        let listener = self.account.listener(arn)?;
        listener.attributes.extend(asked);
        Ok(tags::attributes(&listener.attributes))
    }
}

fn check_protocol(protocol: &str) -> Result<(), Refusal> {
    if ["TCP", "UDP", "TCP_UDP", "TLS"].contains(&protocol) {
        return Ok(());
    }
    Err(Refusal::new(
        "UnsupportedProtocol",
        format!("no data path here for {protocol} listeners"),
    ))
}

fn listener_xml(listener: &Listener) -> String {
    let tuples = listener
        .groups
        .iter()
        .map(|(arn, weight)| el("TargetGroupArn", arn) + &el("Weight", weight));
    let config = wrap("ForwardConfig", members("TargetGroups", tuples));
    let mut groups = listener.groups.keys();
    let only = match (groups.next(), groups.next()) {
        (Some(arn), None) => el("TargetGroupArn", arn),
        _ => String::new(),
    };
    let action = el("Type", "forward") + &only + &el("Order", 1) + &config;
    [
        el("ListenerArn", &listener.arn),
        el("LoadBalancerArn", &listener.balancer),
        el("Port", listener.port),
        el("Protocol", &listener.protocol),
        tls_xml(listener),
        members("DefaultActions", [action].into_iter()),
    ]
    .concat()
}
