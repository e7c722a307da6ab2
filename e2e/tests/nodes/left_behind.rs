//! A run with real nodes leaves nothing of them: not when it ends, and not when it is killed.

use anyhow::{Context, Result, ensure};
use onehop_e2e::world::Programs;
use std::{
    collections::BTreeSet,
    fs,
    io::{BufRead, BufReader},
    path::Path,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

const WITHIN: Duration = Duration::from_secs(30);
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// A cluster as users start it, with its tag.
fn up() -> Result<(Child, String)> {
    let mut command = Command::new(Programs::of_this_build()?.path("nodes")?);
    let mut child = command
        .arg("up")
        .stdout(Stdio::piped())
        .spawn()
        .context("start a cluster")?;
    let output = child.stdout.take().context("its output")?;
    let mut tag = None;
    let mut output = BufReader::new(output);
    let mut line = String::new();
    while output.read_line(&mut line)? > 0 {
        if let Some(path) = line.trim().strip_prefix("export KUBECONFIG=") {
            let folder = Path::new(path).parent().and_then(Path::file_name);
            let folder = folder.context("a folder")?.to_string_lossy().into_owned();
            tag = folder.strip_prefix("onehop-world-").map(str::to_owned);
            break;
        }
        line.clear();
    }
    let tag = tag.context("the cluster did not come up")?;
    // It has more to say, and ends with an error when nobody listens.
    std::thread::spawn(move || std::io::copy(&mut output, &mut std::io::sink()));
    Ok((child, tag))
}

/// Namespaces and control groups of a world, and mounts and processes that name it.
fn traces(tag: &str) -> Result<BTreeSet<String>> {
    let mut found = BTreeSet::new();
    for folder in ["/run/netns".to_owned()].into_iter().chain(hierarchies()?) {
        for entry in fs::read_dir(&folder).into_iter().flatten() {
            let path = entry?.path();
            if path
                .file_name()
                .is_some_and(|name| name.to_string_lossy().starts_with(tag))
            {
                found.insert(path.display().to_string());
            }
        }
    }
    let mounts = fs::read_to_string("/proc/self/mountinfo")?;
    found.extend(
        mounts
            .lines()
            // A namespace's name is a mount, too, and was looked for above.
            .filter(|line| line.contains(tag) && !line.contains(" /run/netns/"))
            .map(str::to_owned),
    );
    for process in fs::read_dir("/proc")? {
        let line = fs::read(process?.path().join("cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line).replace('\0', " ");
        if line.contains(tag) {
            found.insert(line);
        }
    }
    Ok(found)
}

fn hierarchies() -> Result<Vec<String>> {
    let root = Path::new("/sys/fs/cgroup");
    let folders = fs::read_dir(root)?.filter_map(|entry| Some(entry.ok()?.path()));
    let mut all: Vec<String> = folders
        .filter(|p| p.is_dir())
        .map(|p| p.display().to_string())
        .collect();
    all.push(root.display().to_string());
    Ok(all)
}

/// Waits until no trace is left but those allowed.
fn gone(tag: &str, allowed: impl Fn(&str) -> bool) -> Result<()> {
    let deadline = Instant::now() + WITHIN;
    loop {
        let mut left = traces(tag)?;
        left.retain(|trace| !allowed(trace));
        if left.is_empty() {
            return Ok(());
        }
        ensure!(Instant::now() < deadline, "left behind: {left:#?}");
        std::thread::sleep(LOOK_EVERY);
    }
}

#[test]
fn a_cluster_of_real_nodes_leaves_nothing_behind_also_when_it_is_killed() -> Result<()> {
    let pid = |child: &Child| i32::try_from(child.id()).map(nix::unistd::Pid::from_raw);
    let (mut ended, tag) = up()?;
    ensure!(
        traces(&tag)?.len() > 3,
        "the test does not see a cluster that runs"
    );
    nix::sys::signal::kill(pid(&ended)?, nix::sys::signal::Signal::SIGINT)?;
    ensure!(
        ended.wait()?.success(),
        "a cluster that is told to end ends well"
    );
    gone(&tag, |_| false)?;
    ensure!(
        !Path::new(&format!("/tmp/onehop-world-{tag}")).exists(),
        "its folder stays"
    );

    let (mut killed, tag) = up()?;
    killed.kill()?;
    killed.wait()?;
    // Processes and mounts go by themselves; names and control groups are the doctor's.
    gone(&tag, |trace| {
        trace.starts_with("/run/netns/") || trace.starts_with("/sys/fs/cgroup/")
    })?;
    let doctor = Programs::of_this_build()?.path("doctor")?;
    let said = Command::new(doctor)
        .arg("--clean")
        .output()
        .context("run the doctor")?;
    ensure!(
        said.status.success(),
        "{}",
        String::from_utf8_lossy(&said.stderr)
    );
    gone(&tag, |_| false)?;
    fs::remove_dir_all(format!("/tmp/onehop-world-{tag}")).context("remove the killed run's folder")
}
