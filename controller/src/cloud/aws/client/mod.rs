//! The two AWS APIs behind one store: looks cost nothing where the store knows, and each step is one call
//! whose answer goes into the store. Decides nothing about load balancers.

mod convert;
mod duplicate;
pub mod ec2;
pub mod elb;
mod entries;
mod error;
mod make;
mod register;
mod rights;
pub mod store;
mod throttle;
mod time;
mod turns;
mod way;
pub mod xml;

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use aws_credential_types::provider::SharedCredentialsProvider;
use onehop_core::id::{InstallId, ServiceKey};
use onehop_core::time::Time;
use onehop_runtime::clock::Clock;

use self::ec2::Ec2;
use self::elb::Elb;
use self::make::gone_is_done;
use self::store::{Due, Listing, Store, is_ours};
use self::throttle::{Family, Need, Throttle, Turn};
pub use self::throttle::{Limit, Limits};
use self::time::{OurTime, ServiceTime};
use self::turns::Turns;
use self::way::Way;
use super::model::{Balancer, BalancerState, Network, Observed, PeerStack, SecurityGroup, Tagged};
use super::names;
use super::rules::RuleBook;
use super::step::AwsStep;
use super::wanted::RESYNC;
use crate::cloud::{Class, CloudError};
use crate::lease::Fence;
use crate::plan::{Effect, Existing};

/// Between two listings of everything. Out of the five minutes in which what others do is to be put right (AWS-660), a Service
/// that is at rest may look at it a minute later, and the calls take their time.
const DRIFT: Duration = Duration::from_secs(210);
/// Between two reads of targets that are about to change; a little less than the planner's wish, so
/// that a look which comes on time reads.
const POLL: Duration = Duration::from_millis(4500);

/// How to reach AWS.
#[derive(Clone, Debug)]
pub struct Access {
    /// Region; from the environment if not said.
    pub region: Option<String>,
    /// The VPC.
    pub vpc: String,
    /// Another endpoint for ELB.
    pub elb: Option<String>,
    /// Another endpoint for EC2.
    pub ec2: Option<String>,
    /// Credentials; found as every AWS program does if not given.
    pub credentials: Option<SharedCredentialsProvider>,
    /// How many calls a second (AWS-711).
    pub limits: Limits,
    /// Tags, beside the cluster's, of the security group that takes a target's rules where it carries several (AWS-311).
    pub target_group_tags: names::Tags,
}

/// The client.
#[derive(Debug)]
pub struct Client {
    elb: Elb,
    ec2: Ec2,
    throttle: Throttle,
    clock: Clock,
    install: InstallId,
    cluster: String,
    target_group_tags: names::Tags,
    vpc: String,
    region: String,
    store: Mutex<Store>,
    /// Calls about members that wait for their turn.
    turns: Mutex<Turns>,
    /// One listing at a time.
    listing: tokio::sync::Mutex<()>,
}

impl Client {
    /// Finds region and credentials as every AWS program does: environment, profile, web identity,
    /// container, machine (AWS-900, AWS-901).
    pub async fn connect(
        access: Access,
        install: InstallId,
        cluster: String,
        clock: Clock,
    ) -> Result<Self, CloudError> {
        use aws_config::retry::RetryConfig;
        use aws_config::timeout::TimeoutConfig;
        let tried = "configure the AWS client";
        let wrong = |what: &str| CloudError::new(Class::WrongInput, tried, what);
        let timeouts = TimeoutConfig::builder()
            .connect_timeout(Duration::from_secs(3))
            .operation_timeout(Duration::from_secs(10));
        let mut loader = aws_config::defaults(aws_config::BehaviorVersion::latest())
            // Lanes try again by their own clock, and one token is one call.
            .retry_config(RetryConfig::disabled())
            .timeout_config(timeouts.build())
            .time_source(OurTime(clock));
        if let Some(region) = access.region {
            loader = loader.region(aws_config::Region::new(region));
        }
        if let Some(credentials) = access.credentials {
            loader = loader.credentials_provider(credentials);
        }
        let config = loader.load().await;
        let region = config
            .region()
            .ok_or_else(|| wrong("no region: give --aws-region"))?
            .to_string();
        let credentials = config
            .credentials_provider()
            .ok_or_else(|| wrong("no credentials"))?;
        let mut elb = aws_sdk_elasticloadbalancingv2::config::Builder::from(&config);
        elb.set_endpoint_url(access.elb);
        let ec2 = access.ec2.unwrap_or_else(|| default_ec2(&region));
        let ec2 = ec2
            .parse()
            .map_err(|e| wrong(&format!("endpoint {ec2:?}: {e}")))?;
        Ok(Self {
            elb: Elb::new(aws_sdk_elasticloadbalancingv2::Client::from_conf(
                elb.build(),
            )),
            ec2: Ec2::new(ec2, region.clone(), credentials, ServiceTime::new(clock))?,
            throttle: Throttle::new(clock, &access.limits),
            clock,
            install,
            cluster,
            target_group_tags: access.target_group_tags,
            vpc: access.vpc,
            region,
            store: Mutex::default(),
            turns: Mutex::default(),
            listing: tokio::sync::Mutex::default(),
        })
    }

    /// Everything of this install, by Service and UID.
    pub async fn inventory(&self) -> Result<Vec<Existing<ServiceKey>>, CloudError> {
        Box::pin(self.list()).await?;
        let store = self.store();
        let ours = |object: &dyn Tagged| is_ours(object, &self.install).then(|| owner(object));
        let balancers = store.balancers.values().filter_map(|b| ours(b));
        let groups = store.groups.values().filter_map(|g| ours(g));
        let security = store.security_groups.values().filter_map(|g| ours(g));
        let mut all: Vec<_> = balancers.chain(groups).chain(security).flatten().collect();
        all.sort_by(|a, b| (&a.shard, &a.uid).cmp(&(&b.shard, &b.uid)));
        all.dedup();
        Ok(all)
    }

    /// Looks at one Service: reads only what the store does not know, or no longer.
    pub async fn observe(&self, service: &ServiceKey) -> Result<Observed, CloudError> {
        let now = self.clock.now();
        if self.store().listed_at.is_none_or(|at| at + DRIFT <= now) {
            let _turn = self.listing.lock().await;
            // Somebody else may have listed meanwhile.
            if self.store().listed_at.is_none_or(|at| at + DRIFT <= now) {
                Box::pin(self.list()).await?;
            }
        }
        let known = self.known(service);
        for balancer in known.balancers.iter().chain(&known.peer.balancers) {
            self.refresh(balancer, now).await?;
        }
        self.read_peer(&known.peer).await?;
        for group in &known.groups {
            self.read_targets(group, now).await?;
            if self.store().attributes_due(&group.arn, now) {
                let read = self.elb.group_attributes(&self.throttle, &group.arn).await;
                if let Some(read) = present(read)? {
                    self.store()
                        .groups
                        .read(&group.arn, |group| group.attributes = Some(read));
                }
            }
        }
        self.read_interfaces(service, now).await;
        Ok(self.known(service))
    }

    /// Where a target has come whose interface is not known: one read for all that wait for it (AWS-706).
    async fn read_interfaces(&self, service: &ServiceKey, now: Time) {
        let due = || self.store().interfaces_due(&self.install, service, now);
        if !due() {
            return;
        }
        let _turn = self.listing.lock().await;
        if due() {
            // With the security groups that they carry, which may be as new.
            let (interfaces, security) = futures::join!(
                self.ec2.interfaces(&self.throttle, &self.vpc),
                self.ec2.security_groups(&self.throttle, &self.vpc),
            );
            let mut store = self.store();
            if let Some(groups) = told(security) {
                store.security_read(groups, now);
            }
            store.interfaces_read(told(interfaces), now);
        }
    }

    /// Attributes of what the peer has made: compared before it is taken over, and read but once for that. Its targets are
    /// its own until then.
    async fn read_peer(&self, peer: &PeerStack) -> Result<(), CloudError> {
        for balancer in peer.balancers.iter().filter(|b| b.attributes.is_none()) {
            let arn = &balancer.arn;
            let read = self.elb.balancer_attributes(&self.throttle, arn).await;
            if let Some(read) = present(read)? {
                let mut store = self.store();
                store.balancers.read(arn, |b| b.attributes = Some(read));
            }
        }
        for group in peer.groups.iter().filter(|g| g.attributes.is_none()) {
            let arn = &group.arn;
            let read = self.elb.group_attributes(&self.throttle, arn).await;
            if let Some(read) = present(read)? {
                self.store().groups.read(arn, |g| g.attributes = Some(read));
            }
        }
        Ok(())
    }

    /// Somebody else may have changed a Service's targets: the next look reads them.
    pub fn distrust_targets(&self, service: &ServiceKey) {
        self.store().distrust_targets(service);
    }

    fn known(&self, service: &ServiceKey) -> Observed {
        let cluster = (self.cluster.as_str(), &self.target_group_tags);
        self.store().observed(&self.install, cluster, service)
    }

    /// What a load balancer lacks in the store.
    async fn refresh(&self, balancer: &Balancer, now: Time) -> Result<(), CloudError> {
        let arn = &balancer.arn;
        if balancer.state == BalancerState::Provisioning {
            let read = self.elb.balancer(&self.throttle, arn).await;
            let mut store = self.store();
            let Some(read) = present(read)? else {
                store.balancers.gone(arn);
                return Ok(());
            };
            store.balancers.read(arn, |known| {
                known.state = read.state;
                known.subnets = read.subnets;
            });
        }
        if balancer.listeners.is_none() {
            let read = self.elb.listeners(&self.throttle, arn).await;
            let mut store = self.store();
            match present(read)? {
                Some(mut read) => {
                    for listener in read.values_mut() {
                        let known = store.listener_attributes.get(&listener.arn);
                        listener.attributes = known.cloned();
                    }
                    store.balancers.read(arn, |known| {
                        known.listeners.get_or_insert(read);
                    });
                }
                None => store.balancers.gone(arn),
            }
        }
        if self.store().attributes_due(arn, now) {
            let read = self.elb.balancer_attributes(&self.throttle, arn).await;
            if let Some(read) = present(read)? {
                self.store()
                    .balancers
                    .read(arn, |known| known.attributes = Some(read));
            }
        }
        Ok(())
    }

    async fn read_targets(&self, group: &super::model::Group, now: Time) -> Result<(), CloudError> {
        let due = Store::targets_due(group, POLL, RESYNC, now);
        match due {
            Due::No => return Ok(()),
            // Nothing can be decided without.
            Due::Unread => self.throttle.pass(Family::Describe, Turn::Other).await,
            // Its time will come: meanwhile nobody's pass waits for it (AWS-423, AWS-711).
            Due::Moving if !self.throttle.spare(Need::OnTheirWay) => return Ok(()),
            Due::Resting if !self.throttle.spare(Need::AtRest) => return Ok(()),
            Due::Moving | Due::Resting => {}
        }
        let read = self.elb.targets(&self.throttle, &group.arn).await;
        let mut store = self.store();
        match present(read)? {
            Some(targets) => store.targets_read(&group.arn, targets, now),
            None => store.groups.gone(&group.arn),
        }
        Ok(())
    }

    /// Lists everything once (AWS-701).
    async fn list(&self) -> Result<(), CloudError> {
        let began = self.clock.now();
        let throttle = &self.throttle;
        let (balancers, groups, subnets, ranges, security, interfaces) = futures::join!(
            self.elb.balancers(throttle, &self.vpc),
            self.elb.groups(throttle, &self.vpc),
            self.ec2.subnets(throttle, &self.vpc),
            self.ec2.vpc_ranges(throttle, &self.vpc),
            self.ec2.security_groups(throttle, &self.vpc),
            self.ec2.interfaces(throttle, &self.vpc),
        );
        let (mut balancers, mut groups, security) = (balancers?, groups?, security?);
        let arns = balancers
            .iter()
            .map(|b| b.arn.clone())
            .chain(groups.iter().map(|g| g.arn.clone()));
        let mut tags = self.elb.tags(throttle, &arns.collect::<Vec<_>>()).await?;
        let mut tags_of = |arn: &str| tags.remove(arn).unwrap_or_default();
        for balancer in &mut balancers {
            balancer.tags = tags_of(&balancer.arn);
        }
        for group in &mut groups {
            group.tags = tags_of(&group.arn);
        }
        let concerns = |object: &dyn Tagged| {
            is_ours(object, &self.install) || object.peer_stack(&self.cluster).is_some()
        };
        let ours = balancers.into_iter().filter(|b| concerns(b));
        let listing = Listing {
            balancers: ours.map(|b| (b.arn.clone(), b)).collect(),
            groups: groups
                .into_iter()
                .filter(|g| concerns(g))
                .map(|g| (g.arn.clone(), g))
                .collect(),
            network: Network {
                vpc: self.vpc.clone(),
                cidrs: ranges?,
                subnets: subnets?.into_iter().map(|s| (s.id.clone(), s)).collect(),
                named_groups: named(&security),
            },
            security_groups: security,
            interfaces: told(interfaces),
        };
        self.store().listed(listing, began);
        Ok(())
    }

    /// Revokes the rules on targets that no Service needs any more, and lets go the group that they have as source once
    /// nothing is left (AWS-321, AWS-330).
    pub async fn revoke_surplus(
        &self,
        book: &Mutex<RuleBook>,
        fence: &Fence,
    ) -> Result<(), CloudError> {
        let now = self.clock.now();
        let description = names::rule_description(&self.install);
        let surplus = {
            let store = self.store();
            let there = store.there(&self.install);
            let mut book = book.lock().unwrap_or_else(PoisonError::into_inner);
            book.surplus(&there, &description, now)
        };
        let throttle = &self.throttle;
        for (id, rules) in surplus {
            self.revoke(Way { throttle, fence }, &id, &rules).await?;
        }
        let idle = self.store().idle_backend(&self.install, &description, now);
        if let Some(id) = idle {
            gone_is_done(self.ec2.delete(Way { throttle, fence }, &id).await)?;
            self.store().security_groups.removed(&id, self.clock.now());
        }
        Ok(())
    }

    /// Makes one call, and what it takes to know what became of it.
    pub async fn execute(&self, step: &AwsStep, fence: &Fence) -> Result<Effect, CloudError> {
        let throttle = &self.throttle;
        self.make(Way { throttle, fence }, step).await
    }

    fn store(&self) -> MutexGuard<'_, Store> {
        // No critical section can panic half-way.
        self.store.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Nothing for what is not there.
fn present<T>(read: Result<T, CloudError>) -> Result<Option<T>, CloudError> {
    match read {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.class == Class::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

fn owner(object: &dyn Tagged) -> Option<Existing<ServiceKey>> {
    let service = object.service()?;
    Some(Existing {
        shard: service.clone(),
        service,
        uid: object.uid()?,
        addresses: Vec::new(),
    })
}

fn named(groups: &[SecurityGroup]) -> BTreeMap<String, String> {
    let by_name = groups
        .iter()
        .filter_map(|g| Some((g.tags.get("Name")?.clone(), g.id.clone())));
    let by_id = groups.iter().map(|g| (g.id.clone(), g.id.clone()));
    // The lowest id of a name counts.
    by_id.chain(by_name.rev()).collect()
}

/// The EC2 endpoint of a region, in the partitions whose suffix differs (AWS-845).
fn default_ec2(region: &str) -> String {
    let suffix = if region.starts_with("cn-") {
        "amazonaws.com.cn"
    } else {
        "amazonaws.com"
    };
    format!("https://ec2.{region}.{suffix}/")
}

/// Whose an object is, by its tags.
fn owner_words(tags: &names::Tags) -> String {
    let all: Vec<_> = tags
        .iter()
        .map(|(key, value)| format!("{key}={value}"))
        .collect();
    if all.is_empty() {
        "nobody by its tags".to_owned()
    } else {
        all.join(", ")
    }
}

/// A read without which everything goes on as before: rules of security groups never stop a registration (AWS-312).
fn told<T>(read: Result<T, CloudError>) -> Option<T> {
    read.inspect_err(|error| {
        tracing::warn!(%error, "rules go where they went before, or to the security group with the cluster's tag");
    })
    .ok()
}

/// Whether an answer to an idempotent create is ours (AWS-116): it may be somebody else's object.
fn check_owner(tried: &str, tags: &names::Tags, wanted: &names::Tags) -> Result<(), CloudError> {
    let keys = [
        names::INSTALL,
        names::SERVICE,
        names::SERVICE_UID,
        names::RESOURCE,
    ];
    if keys.iter().all(|key| tags.get(*key) == wanted.get(*key)) {
        return Ok(());
    }
    let owner = owner_words(tags);
    let answer = format!("the name is taken by an object of {owner}; it is left alone");
    Err(CloudError::new(Class::Conflict, tried, answer))
}

#[cfg(test)]
mod tests;
