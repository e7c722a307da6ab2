//! What clients and targets of a Network Load Balancer see on the wire, as manifests ask for it: headers of the PROXY
//! protocol, TLS that ends at the listener, and that only sources which are let through arrive.

use crate::aws::{OURS_LEFT, remove, serve, world};
use crate::aws_paths::{PREFIX, WITHIN, ask, of_nodes, of_pods, states};
use crate::support::READY_WITHIN;
use anyhow::{Context, Result, ensure};
use e2e_apiserver::pki::Authority;
use e2e_cloud::{Certificate, engine::TargetState};
use k8s_openapi::api::core::v1::Pod;
use kube::api::DeleteParams;
use onehop_e2e::{
    traffic::{Answer, SocketSource, Transport, ask_tcp},
    world::{OnTerm, ServiceManifest, eventually, pod, sockets_of},
};
use rustls::pki_types::{CertificateDer, ServerName, pem::PemObject};
use serde_json::{Value, json};
use std::{net::IpAddr, net::SocketAddr, sync::Arc};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};

/// A pod whose server awaits the PROXY protocol.
fn proxied_pod(name: &str, node: &str) -> Value {
    let mut pod = pod(name, "web", node, OnTerm::Exit);
    if let Some(args) = pod["spec"]["containers"][0]["args"].as_array_mut() {
        args.push(json!("--proxy-protocol"));
    }
    pod
}

#[tokio::test(flavor = "multi_thread")]
async fn aws069_aws771_aws776_the_proxy_protocol_on_the_wire_by_target_type_and_attribute()
-> Result<()> {
    let world = world().await?;
    let pods = world.objects.api::<Pod>();
    let first: IpAddr = world.pod_place("web").await?.1.into();
    let objects = &world.objects;
    objects.create(proxied_pod("proxied", "a")).await?;
    objects
        .pod_ready("default", "proxied", READY_WITHIN)
        .await?;
    pods.delete("web", &DeleteParams::default()).await?;
    let pod: IpAddr = world.pod_place("proxied").await?.1.into();
    ensure!(pod != first, "a pod of its own");
    let node = |name: &str| -> Result<IpAddr> { Ok(world.kubelet(name)?.node().address().into()) };
    let a = node("a")?;
    let up = TargetState::Healthy;
    let address = serve(&world, of_pods()).await?;
    let client = world.client.address();
    let key = format!("{PREFIX}target-group-attributes");
    let with = |manifest: ServiceManifest, kept: bool, proxied: bool| {
        let attributes =
            format!("preserve_client_ip.enabled={kept},proxy_protocol_v2.enabled={proxied}");
        manifest.annotated(&key, &attributes)
    };
    for instance in [false, true] {
        for (kept, proxied) in [(false, false), (false, true), (true, true), (true, false)] {
            let (manifest, targets) = if instance {
                (of_nodes(), vec![(a, up)])
            } else {
                (of_pods(), vec![(pod, up)])
            };
            let manifest = with(manifest, kept, proxied);
            world.objects.apply(manifest.json()).await?;
            let what = format!("AWS-069: instance {instance}, kept {kept}, proxied {proxied}");
            eventually(&world.clock, &what, WITHIN, async || {
                let answer = ask_tcp(&world.sockets, address).await;
                let (answer, local) = answer.map_err(|failure| format!("{failure:?}"))?;
                let said = answer.proxy.as_ref();
                let right = if proxied {
                    said.is_some_and(|header| {
                        header.source == Some(local) && header.destination == Some(address)
                    })
                } else {
                    said.is_none()
                };
                if right && (answer.peer.ip() == client) == kept {
                    Ok(())
                } else {
                    Err(format!("{answer:?}, from {local}"))
                }
            })
            .await?;
            // AWS-776: probes carry the header as well, and are answered all the same.
            eventually(&world.clock, &what, WITHIN, async || {
                let have = states(&world);
                // The group of the other type stays for a while after it was replaced.
                if targets
                    .iter()
                    .all(|(at, state)| have.get(at) == Some(state))
                {
                    Ok(())
                } else {
                    Err(format!("{have:?}"))
                }
            })
            .await?;
        }
    }
    remove(&world, OURS_LEFT).await?;
    world.end().await
}

/// What a client says that trusts `authority`, through TLS.
async fn ask_tls(
    sockets: &SocketSource,
    to: SocketAddr,
    authority: &Authority,
    name: &'static str,
) -> Result<Answer, String> {
    let told = |error: &dyn std::fmt::Display| error.to_string();
    let mut roots = rustls::RootCertStore::empty();
    let certificate = CertificateDer::from_pem_slice(authority.pem().as_bytes());
    let certificate = certificate.map_err(|e| told(&e))?;
    roots.add(certificate).map_err(|e| told(&e))?;
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|e| told(&e))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    let socket = sockets(Transport::Tcp, to).map_err(|e| told(&e))?;
    let talk = async {
        let stream = tokio::net::TcpSocket::from_std_stream(socket.into())
            .connect(to)
            .await?;
        let name = ServerName::try_from(name).map_err(std::io::Error::other)?;
        let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
        let mut stream = BufReader::new(connector.connect(name, stream).await?);
        let mut line = Vec::new();
        stream.read_until(b'\n', &mut line).await?;
        stream.write_all(b"bye\n").await?;
        stream.shutdown().await?;
        Ok::<_, std::io::Error>(line)
    };
    let line = tokio::time::timeout(onehop_e2e::traffic::CLIENT_TIMEOUT, talk).await;
    let line = line.map_err(|e| told(&e))?.map_err(|e| told(&e))?;
    Answer::parse(&line).ok_or_else(|| String::from_utf8_lossy(&line).into_owned())
}

#[tokio::test(flavor = "multi_thread")]
async fn aws064_aws065_aws066_tls_ends_at_the_load_balancer_with_the_services_certificate()
-> Result<()> {
    const HOST: &str = "www.example.com";
    const ARN: &str = "arn:aws:acm:eu-central-1:123456789012:certificate/e2e";
    let world = world().await?;
    let authority = Authority::new()?;
    let issue = |name: &str| -> Result<Certificate> {
        let issued = authority.server(&[name.to_owned()])?;
        Ok(Certificate {
            certificate: issued.certificate_pem(),
            key: issued.key_pem(),
        })
    };
    world.aws()?.add_certificate(ARN, issue(HOST)?);
    let next = format!("{ARN}-2");
    world
        .aws()?
        .add_certificate(&next, issue("next.example.com")?);
    let ports = json!([
        {"name": "http", "port": 80, "targetPort": 8080, "protocol": "TCP"},
        {"name": "https", "port": 443, "targetPort": 8080, "protocol": "TCP"},
    ]);
    let manifest = |arn: &str| {
        let manifest = of_pods().with("ports", ports.clone());
        let manifest = manifest.annotated(&format!("{PREFIX}ssl-cert"), arn);
        manifest.annotated(&format!("{PREFIX}ssl-ports"), "https")
    };
    let plain = serve(&world, manifest(ARN)).await?;
    let secure = SocketAddr::new(plain.ip(), 443);
    let answers = async |name: &'static str| {
        let what = format!("AWS-064: {name} is who answers");
        eventually(&world.clock, &what, WITHIN, async || {
            let answer = ask_tls(&world.sockets, secure, &authority, name).await?;
            if answer.pod == "web" {
                Ok(())
            } else {
                Err(format!("{answer:?}"))
            }
        })
        .await
    };
    answers(HOST).await?;
    // AWS-065: the other port is as it was.
    ask(&world, plain).await.map_err(anyhow::Error::msg)?;
    let plainly = ask(&world, secure).await;
    ensure!(plainly.is_err(), "AWS-064: {plainly:?}");
    world.objects.apply(manifest(&next).json()).await?;
    answers("next.example.com").await?;
    remove(&world, OURS_LEFT).await?;
    world.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn aws061_aws301_aws320_only_the_asked_sources_come_in_and_a_change_harms_none_that_stays()
-> Result<()> {
    let world = world().await?;
    let stranger = world.fabric().add_client("stranger", true)?;
    let strange = sockets_of(stranger.netns(), stranger.address());
    let only = |ranges: &[IpAddr]| {
        let ranges: Vec<_> = ranges.iter().map(|a| format!("{a}/32")).collect();
        of_pods().with("loadBalancerSourceRanges", json!(ranges))
    };
    let (ours, theirs) = (world.client.address().into(), stranger.address().into());
    let address = serve(&world, only(&[ours])).await?;
    let refused = ask_tcp(&strange, address).await;
    ensure!(refused.is_err(), "AWS-301: {refused:?}");
    world.objects.apply(only(&[ours, theirs]).json()).await?;
    let what = "AWS-061: the other source comes in";
    eventually(&world.clock, what, WITHIN, async || {
        // AWS-320: and the first one all the while.
        ask(&world, address).await?;
        let answer = ask_tcp(&strange, address).await;
        answer.map(drop).map_err(|failure| format!("{failure:?}"))
    })
    .await?;
    world.objects.apply(only(&[theirs]).json()).await?;
    let what = "AWS-061: the first source comes in no more";
    eventually(&world.clock, what, 3 * WITHIN, async || {
        match ask(&world, address).await {
            Ok(answer) => Err(format!("{answer:?}")),
            Err(_) => Ok(()),
        }
    })
    .await?;
    let still = ask_tcp(&strange, address).await;
    still.map_err(|failure| anyhow::anyhow!("AWS-320: {failure:?}"))?;
    remove(&world, OURS_LEFT).await.context("it goes")?;
    world.end().await
}
