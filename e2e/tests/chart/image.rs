//! The images: both programs run in a root that holds nothing but what the image copies in, as the user that it names;
//! and the Containerfile and the chart agree.

use anyhow::{Context, Result, ensure};
use e2e_fabric::{Fabric, FabricConfig, WorldTag};
use onehop_e2e::{
    chart::{Chart, minimal_values},
    controlplane::{Account, BackEnd, ControlPlane},
    world::{Programs, eventually},
};
use onehop_runtime::clock::Clock;
use std::{
    net::{Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const WITHIN: Duration = Duration::from_secs(30);
/// Who the controller is, in its image and in the chart.
const NOBODY: u32 = 65532;

/// A folder that goes when it is dropped.
struct Root(PathBuf);

impl Root {
    /// What the image of a program holds, laid out as its Containerfile does.
    fn of(program: &str, tag: &WorldTag) -> Result<Self> {
        let name = format!("onehop-root-{}-{program}", tag.as_str());
        let root = Self(std::env::temp_dir().join(name));
        let built = Programs::of_this_build()?.path(program)?;
        let status = Command::new(project().join("images/rootfs"))
            .arg(built)
            .arg(&root.0)
            .status()?;
        ensure!(status.success(), "images/rootfs: {status}");
        Ok(root)
    }

    /// The program in it, as this user.
    fn program(&self, user: u32, program: &str) -> Command {
        let mut command = Command::new("chroot");
        command
            .arg(format!("--userspec={user}:{user}"))
            .arg(&self.0)
            .arg(format!("/usr/bin/{program}"))
            .env_clear()
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
        command
    }
}

impl Drop for Root {
    fn drop(&mut self) {
        // What stays lies in the machine's folder for such things.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn project() -> PathBuf {
    Chart::folder().join("../..")
}

/// The body of a page that a program of the management namespace serves.
async fn page(fabric: &Fabric, port: u16, path: &str) -> Result<String> {
    let to = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let mut stream = fabric.management().tcp_stream(to).await?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    Ok(answer)
}

/// C-53 and C-57: as nobody, in an empty root, it reaches the API server over TLS, lists and serves its ports.
#[tokio::test(flavor = "multi_thread")]
async fn c53_c57_the_controller_runs_in_its_image_alone() -> Result<()> {
    let clock = Clock::system();
    let tag = WorldTag::new()?;
    let root = Root::of("onehop-controller", &tag)?;
    let fabric = Fabric::new(tag, FabricConfig::new(clock))?;
    let plane = ControlPlane::start(BackEnd::Embedded, &fabric, clock, 1, &root.0).await?;
    let account = Account::Controller {
        replica: "image".to_owned(),
    };
    let kubeconfig = plane.kubeconfig(&account).await?;
    let inside = Path::new("/").join(kubeconfig.file_name().context("a name")?);
    let mut command = root.program(NOBODY, "onehop-controller");
    command
        .args([
            "--provider=local",
            "--install-id=image",
            "--leader-elect=false",
        ])
        // Nobody answers there: this is about the program, not about a cloud.
        .arg("--local-endpoint=http://127.0.0.1:9")
        .arg(format!("--kubeconfig={}", inside.display()));
    let mut child = fabric.management().spawn(command)?;
    eventually(&clock, "it has listed Services", WITHIN, async || {
        let page = page(&fabric, 8080, "/metrics")
            .await
            .map_err(|e| e.to_string())?;
        let listed = page
            .lines()
            .any(|line| line == "watch_lists_total{kind=\"Service\"} 1");
        if listed { Ok(()) } else { Err(page) }
    })
    .await?;
    assert!(
        page(&fabric, 8081, "/livez")
            .await?
            .starts_with("HTTP/1.1 200")
    );
    child.kill().await?;
    drop(plane);
    fabric.end()?;
    Ok(())
}

/// C-57: the agent reaches the kernel from an empty root: no `nft`, no `conntrack`, no shell.
#[tokio::test(flavor = "multi_thread")]
async fn s314_c57_the_agent_runs_in_its_image_alone() -> Result<()> {
    let tag = WorldTag::new()?;
    let root = Root::of("onehop-node-agent", &tag)?;
    let fabric = Fabric::new(tag, FabricConfig::new(Clock::system()))?;
    let mut asks = root.program(0, "onehop-node-agent");
    asks.args(["ready", "--ready-socket=/run/onehop/ready.sock"]);
    let status = fabric.management().spawn(asks)?.wait().await?;
    assert_eq!(status.code(), Some(1), "nobody answers: not ready");
    let mut cleans = root.program(0, "onehop-node-agent");
    cleans.args(["--cleanup", "--node-name=n"]);
    let status = fabric.management().spawn(cleans)?.wait().await?;
    assert!(status.success(), "{status}");
    fabric.end()?;
    Ok(())
}

/// What the images say and what the chart and the workspace say is one.
#[test]
fn c53_c57_the_containerfile_agrees_with_the_chart() -> Result<()> {
    let text = std::fs::read_to_string(project().join("Containerfile"))?;
    let rendered = Chart::of_this_build()?.render(&minimal_values())?;
    let controller = rendered.controller()?;
    assert_eq!(controller.pod["securityContext"]["runAsUser"], NOBODY);
    let agent = rendered.agent()?;
    assert_eq!(agent.container["securityContext"]["runAsUser"], 0);
    let probe = &agent.container["readinessProbe"]["exec"]["command"][0];
    for (stage, user, program) in [
        ("controller", NOBODY, "onehop-controller"),
        ("node-agent", 0, "onehop-node-agent"),
    ] {
        let stage = format!("FROM scratch AS {stage}\n");
        let (_, stage) = text.split_once(&stage).context(stage.clone())?;
        let stage = stage.split("\nFROM ").next().unwrap_or_default();
        assert!(stage.contains(&format!("USER {user}:{user}\n")), "{stage}");
        assert!(
            stage.contains(&format!("ENTRYPOINT [\"/usr/bin/{program}\"]")),
            "{stage}"
        );
        // Where the probe finds the program by its name alone.
        assert!(stage.contains("ENV PATH=/usr/bin\n"), "{stage}");
        assert!(text.contains(&format!("images/rootfs target/release/{program} ")));
    }
    assert_eq!(probe, "onehop-node-agent");
    let toolchain = std::fs::read_to_string(project().join("rust-toolchain.toml"))?;
    let version = toolchain.split('"').nth(1).context("a version")?;
    assert!(text.contains(&format!("FROM rust:{version}-")), "{version}");
    Ok(())
}
