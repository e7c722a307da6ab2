//! The few EC2 calls that are made, by the Query protocol (AWS-904, AWS-905): form in, XML out, signed.

use std::sync::Mutex;
use std::sync::PoisonError;
use std::time::Duration;

use aws_credential_types::Credentials;
use aws_credential_types::provider::{ProvideCredentials, SharedCredentialsProvider};
use aws_sigv4::http_request::{SignableBody, SignableRequest, SigningSettings, sign};
use aws_sigv4::sign::v4;
use onehop_core::id::Cidr;
use reqwest::Url;

use super::entries::{interface, rules_form, security_group, subnet};
use super::error::{answer, chain, class};
use super::throttle::{Family, Throttle, Turn};
use super::time::ServiceTime;
use super::way::Way;
use super::xml::{self, Element};
use crate::cloud::aws::interfaces::Interface;
use crate::cloud::aws::model::{Rule, SecurityGroup, Subnet};
use crate::cloud::aws::names::Tags;
use crate::cloud::aws::stack::SecuritySpec;
use crate::cloud::{Class, CloudError, https};

/// The API's version, part of every call.
const VERSION: &str = "2016-11-15";
/// Longest wait for one answer.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Most pages of one listing (AWS-707).
const PAGES: usize = 200;
/// Credentials are fetched anew so long before they end.
const RENEW: Duration = Duration::from_mins(5);

/// A client.
pub struct Ec2 {
    http: reqwest::Client,
    endpoint: Url,
    region: String,
    credentials: SharedCredentialsProvider,
    known: Mutex<Option<Credentials>>,
    time: ServiceTime,
}

/// Parameters of one call.
pub type Form = Vec<(String, String)>;

impl Ec2 {
    /// A client for the API at `endpoint`.
    pub fn new(
        endpoint: Url,
        region: String,
        credentials: SharedCredentialsProvider,
        time: ServiceTime,
    ) -> Result<Self, CloudError> {
        let http = https::build(https::builder(&endpoint, None)?.timeout(TIMEOUT))?;
        Ok(Self {
            http,
            endpoint,
            region,
            credentials,
            known: Mutex::default(),
            time,
        })
    }

    /// Makes one call that changes nothing.
    pub async fn ask(
        &self,
        throttle: &Throttle,
        action: &str,
        form: &[(String, String)],
    ) -> Result<Element, CloudError> {
        throttle.pass(Family::Ec2, Turn::Other).await;
        self.send(throttle, action, form).await
    }

    /// Makes one call that changes something.
    async fn change(
        &self,
        way: Way<'_>,
        action: &str,
        form: &[(String, String)],
    ) -> Result<(), CloudError> {
        self.answered(way, action, form).await.map(drop)
    }

    async fn answered(
        &self,
        way: Way<'_>,
        action: &str,
        form: &[(String, String)],
    ) -> Result<Element, CloudError> {
        way.throttle.pass(Family::Ec2, Turn::Other).await;
        let call = self.send(way.throttle, action, form);
        way.fenced(&format!("ec2:{action}"), call).await?
    }

    async fn send(
        &self,
        throttle: &Throttle,
        action: &str,
        form: &[(String, String)],
    ) -> Result<Element, CloudError> {
        let tried = format!("ec2:{action}");
        let body = body(action, form);
        let request = self.signed(&tried, body).await?;
        let failed =
            |error: reqwest::Error| CloudError::new(Class::Transient, &tried, chain(&error));
        let response = request.send().await.map_err(failed)?;
        let status = response.status();
        if !status.is_success() {
            let date = response.headers().get(http::header::DATE);
            self.time.refused(date.and_then(|date| date.to_str().ok()));
        }
        let text = response.text().await.map_err(failed)?;
        let read = xml::read(&text);
        if status.is_success() {
            return match read {
                Ok((_, root)) => Ok(root),
                Err(error) => Err(CloudError::new(Class::Transient, &tried, error.to_string())),
            };
        }
        let error = read.ok().and_then(|(_, root)| {
            let error = root.child("Errors")?.child("Error")?;
            Some((
                error.text_of("Code").to_owned(),
                error.text_of("Message").to_owned(),
            ))
        });
        let Some((code, message)) = error else {
            return Err(CloudError::new(
                Class::Transient,
                &tried,
                status.to_string(),
            ));
        };
        let class = class(&code);
        if class == Class::Throttled {
            throttle.refused(Family::Ec2);
        }
        Err(CloudError::new(class, tried, answer(&code, &message)))
    }

    async fn signed(
        &self,
        tried: &str,
        body: String,
    ) -> Result<reqwest::RequestBuilder, CloudError> {
        let wrong =
            |error: &dyn std::error::Error| CloudError::new(Class::WrongInput, tried, chain(error));
        let identity = self.credentials(tried).await?.into();
        let params = v4::SigningParams::builder()
            .identity(&identity)
            .region(&self.region)
            .name("ec2")
            .time(self.time.now())
            .settings(SigningSettings::default())
            .build()
            .map_err(|error| wrong(&error))?
            .into();
        let content = (
            "content-type",
            "application/x-www-form-urlencoded; charset=utf-8",
        );
        let bytes = SignableBody::Bytes(body.as_bytes());
        let request =
            SignableRequest::new("POST", self.endpoint.as_str(), [content].into_iter(), bytes)
                .map_err(|error| wrong(&error))?;
        let (signature, _) = sign(request, &params)
            .map_err(|error| wrong(&error))?
            .into_parts();
        let mut request = self
            .http
            .post(self.endpoint.clone())
            .header(content.0, content.1);
        for (name, value) in signature.headers() {
            request = request.header(name, value);
        }
        Ok(request.body(body))
    }

    /// Credentials that hold for a while.
    async fn credentials(&self, tried: &str) -> Result<Credentials, CloudError> {
        let lasts = |known: &Credentials| {
            known
                .expiry()
                .is_none_or(|end| end > self.time.now() + RENEW)
        };
        let known = self
            .known
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        if let Some(known) = known.filter(lasts) {
            return Ok(known);
        }
        let fresh = self
            .credentials
            .provide_credentials()
            .await
            .map_err(|error| {
                CloudError::new(
                    Class::Transient,
                    tried,
                    format!("no credentials: {}", chain(&error)),
                )
            })?;
        *self.known.lock().unwrap_or_else(PoisonError::into_inner) = Some(fresh.clone());
        Ok(fresh)
    }

    /// All pages of a listing, each entry read.
    async fn pages<T>(
        &self,
        throttle: &Throttle,
        action: &str,
        form: Form,
        list: &str,
        read: impl Fn(&Element) -> T,
    ) -> Result<Vec<T>, CloudError> {
        let (mut all, mut token) = (Vec::new(), String::new());
        for _ in 0..PAGES {
            let mut page = form.clone();
            page.push(("MaxResults".to_owned(), "1000".to_owned()));
            if !token.is_empty() {
                page.push(("NextToken".to_owned(), token.clone()));
            }
            let answer = self.ask(throttle, action, &page).await?;
            all.extend(answer.items(list).map(&read));
            let next = answer.text_of("nextToken");
            if next.is_empty() {
                return Ok(all);
            }
            if next == token {
                break;
            }
            next.clone_into(&mut token);
        }
        let what = "its pages do not end";
        Err(CloudError::new(
            Class::Transient,
            format!("ec2:{action}"),
            what,
        ))
    }

    /// The ranges of a VPC.
    pub async fn vpc_ranges(
        &self,
        throttle: &Throttle,
        vpc: &str,
    ) -> Result<Vec<Cidr>, CloudError> {
        let form = vec![("VpcId.1".to_owned(), vpc.to_owned())];
        let answer = self.ask(throttle, "DescribeVpcs", &form).await?;
        let vpcs: Vec<_> = answer.items("vpcSet").collect();
        let v4 = vpcs
            .iter()
            .flat_map(|vpc| vpc.items("cidrBlockAssociationSet"));
        let v4 = v4.filter_map(|entry| entry.text_of("cidrBlock").parse().ok());
        let v6 = vpcs
            .iter()
            .flat_map(|vpc| vpc.items("ipv6CidrBlockAssociationSet"));
        let v6 = v6.filter_map(|entry| entry.text_of("ipv6CidrBlock").parse().ok());
        Ok(v4.chain(v6).collect())
    }

    /// The subnets of a VPC.
    pub async fn subnets(&self, throttle: &Throttle, vpc: &str) -> Result<Vec<Subnet>, CloudError> {
        self.pages(
            throttle,
            "DescribeSubnets",
            of_vpc(vpc),
            "subnetSet",
            subnet,
        )
        .await
    }

    /// The security groups of a VPC, with their inbound rules.
    pub async fn security_groups(
        &self,
        throttle: &Throttle,
        vpc: &str,
    ) -> Result<Vec<SecurityGroup>, CloudError> {
        let form = of_vpc(vpc);
        self.pages(
            throttle,
            "DescribeSecurityGroups",
            form,
            "securityGroupInfo",
            security_group,
        )
        .await
    }

    /// The network interfaces of a VPC.
    pub async fn interfaces(
        &self,
        throttle: &Throttle,
        vpc: &str,
    ) -> Result<Vec<Interface>, CloudError> {
        self.pages(
            throttle,
            "DescribeNetworkInterfaces",
            of_vpc(vpc),
            "networkInterfaceSet",
            interface,
        )
        .await
    }

    /// Makes a security group; gives its id.
    pub async fn create(&self, way: Way<'_>, spec: &SecuritySpec) -> Result<String, CloudError> {
        let mut form: Form = [
            ("GroupName", spec.name.as_str()),
            ("GroupDescription", spec.description.as_str()),
            ("VpcId", spec.vpc.as_str()),
            ("TagSpecification.1.ResourceType", "security-group"),
        ]
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .into();
        for (index, (key, value)) in spec.tags.iter().enumerate() {
            let stem = format!("TagSpecification.1.Tag.{}", index + 1);
            form.push((format!("{stem}.Key"), key.clone()));
            form.push((format!("{stem}.Value"), value.clone()));
        }
        let answer = self.answered(way, "CreateSecurityGroup", &form).await?;
        Ok(answer.text_of("groupId").to_owned())
    }

    /// Adds or takes away inbound rules.
    pub async fn change_rules(
        &self,
        way: Way<'_>,
        action: &str,
        group: &str,
        rules: &[Rule],
        description: &str,
    ) -> Result<(), CloudError> {
        let form = rules_form(group, rules, description);
        self.change(way, action, &form).await
    }

    /// Sets tags of a security group.
    pub async fn tag(&self, way: Way<'_>, group: &str, tags: &Tags) -> Result<(), CloudError> {
        let mut form = vec![("ResourceId.1".to_owned(), group.to_owned())];
        for (index, (key, value)) in tags.iter().enumerate() {
            form.push((format!("Tag.{}.Key", index + 1), key.clone()));
            form.push((format!("Tag.{}.Value", index + 1), value.clone()));
        }
        self.change(way, "CreateTags", &form).await
    }

    /// Removes tags of a security group.
    pub async fn untag(
        &self,
        way: Way<'_>,
        group: &str,
        keys: &[String],
    ) -> Result<(), CloudError> {
        let mut form = vec![("ResourceId.1".to_owned(), group.to_owned())];
        let keys = keys.iter().enumerate();
        form.extend(keys.map(|(index, key)| (format!("Tag.{}.Key", index + 1), key.clone())));
        self.change(way, "DeleteTags", &form).await
    }

    /// Removes a security group.
    pub async fn delete(&self, way: Way<'_>, group: &str) -> Result<(), CloudError> {
        let form = [("GroupId".to_owned(), group.to_owned())];
        self.change(way, "DeleteSecurityGroup", &form).await
    }
}

impl std::fmt::Debug for Ec2 {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Without credentials.
        write!(f, "Ec2({})", self.endpoint)
    }
}

fn body(action: &str, form: &[(String, String)]) -> String {
    let mut pairs = form_urlencoded::Serializer::new(String::new());
    pairs
        .append_pair("Action", action)
        .append_pair("Version", VERSION);
    pairs.extend_pairs(form);
    pairs.finish()
}

fn of_vpc(vpc: &str) -> Form {
    vec![
        ("Filter.1.Name".to_owned(), "vpc-id".to_owned()),
        ("Filter.1.Value.1".to_owned(), vpc.to_owned()),
    ]
}
