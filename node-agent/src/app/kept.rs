//! Health answers over a restart (S-109): what an earlier process kept, and what is kept for the next one.

use onehop_core::health::LocalReady;

use super::App;
use crate::http::Tables;
use crate::node_file::{NodeFile, PortAnswer};

impl App {
    /// Gives the answers that an earlier process kept, until the API server says what is true (S-109).
    pub(super) fn adopt(&mut self, file: &NodeFile) {
        if self.state.synced() {
            return;
        }
        tracing::info!(
            ports = file.ports.len(),
            pods = file.pods.len(),
            "health answers as an earlier process kept them"
        );
        self.health_ports.set_addresses(file.addresses.clone());
        for answer in &file.ports {
            let service = answer.service();
            let ready: LocalReady = answer.ready.iter().copied().collect();
            self.health_ports.add(&service, answer.port);
            self.out.board.raise(&service, &ready, &ready);
            self.out.board.hold(&service, answer.held);
            self.kept.push(service);
        }
        self.out.board.adopt_pods(&file.pods);
        self.state.guards().targets(&file.installs);
        self.state.windows_mut().targets(&file.installs);
        self.out.board.in_sync();
        self.out.pod_answers.send_replace(Tables::Ours);
        if let Some(listens) = self.health_ports.take_changed() {
            self.out.listens.send_replace(listens);
        }
    }

    /// What is to be kept for the next process.
    pub(super) fn node_file(&self) -> NodeFile {
        let ports = self.health_ports.all().map(|(service, port)| {
            let ready = self.state.local_ready(service);
            PortAnswer::new(service, (port, self.state.holds(service)), &ready)
        });
        NodeFile {
            written: self.clock.now().as_millis(),
            tables: self.planner.digest(),
            addresses: self.health_ports.addresses().to_vec(),
            ports: ports.collect(),
            pods: self.out.board.pods(),
            installs: self.state.installs().clone(),
        }
    }
}
