//! The thread that writes to the kernel. It owns the [`Dataplane`], takes one order at a time and
//! reports back; it does nothing else, so that no list, scrape or event ever delays a commit.

use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use tokio::sync::mpsc::UnboundedSender;

use crate::table::element::{CommitFailure, Dataplane, ElementChange, Elements, Family};
use crate::table::layout::Ranges;

/// Without an order for this long, the writer tidies up (S-247).
const IDLE: Duration = Duration::from_secs(1);

/// What the writer shall do. The app has at most one order under way.
#[derive(Debug)]
pub enum Order {
    /// Make or take over the tables and say what they hold.
    ReadBack,
    /// Commit a change.
    Commit(Box<Commit>),
}

/// What one commit shall bring about.
#[derive(Debug, Default)]
pub struct Commit {
    /// The ranges to which the static part is to be brought before, if they are new.
    pub ranges: Option<Ranges>,
    /// Take away what a stopped kube-proxy left.
    pub take_over: bool,
    /// Elements.
    pub change: ElementChange,
}

/// What came of an order.
#[derive(Debug)]
pub enum Report {
    /// What the tables hold; `None`: another agent holds them.
    Tables(Result<Option<Elements>, CommitFailure>),
    /// The commit ended.
    Commit {
        /// Success, or what was refused.
        result: Result<(), CommitFailure>,
        /// Time it took in the kernel and in encoding.
        took: Duration,
    },
    /// Housekeeping failed: what the tables hold is in doubt.
    Doubt(Family, CommitFailure),
}

/// Handle of the thread. Dropping it ends the thread after the order under way.
#[derive(Debug)]
pub struct Writer {
    orders: Option<Sender<Order>>,
    thread: Option<JoinHandle<()>>,
}

/// The writer thread has ended; the process cannot do its job any more.
#[derive(Debug, thiserror::Error)]
#[error("the kernel writer thread has ended; the process must be restarted")]
pub struct WriterGone;

impl Writer {
    /// Starts the thread in the network namespace of the caller.
    pub fn spawn(
        dataplane: Box<dyn Dataplane>,
        reports: UnboundedSender<Report>,
    ) -> io::Result<Self> {
        let (orders, inbox) = channel();
        let thread = thread::Builder::new()
            .name("nft-writer".to_owned())
            .spawn(move || work(dataplane, &inbox, &reports))?;
        Ok(Self {
            orders: Some(orders),
            thread: Some(thread),
        })
    }

    /// Lets go of the tables once the order under way is done; what comes back waits for that. Orders are taken no more.
    pub fn close(&mut self) -> impl FnOnce() + Send + use<> {
        self.orders = None;
        let thread = self.thread.take();
        move || {
            // A panic of the thread has been reported by it.
            let _ = thread.map(JoinHandle::join);
        }
    }

    /// Hands over an order; the report comes by the channel given at the start.
    pub fn order(&self, order: Order) -> Result<(), WriterGone> {
        let orders = self.orders.as_ref().ok_or(WriterGone)?;
        orders.send(order).map_err(|_| WriterGone)
    }
}

fn work(
    mut dataplane: Box<dyn Dataplane>,
    inbox: &Receiver<Order>,
    reports: &UnboundedSender<Report>,
) {
    let mut resting = false;
    loop {
        let report = match next(inbox, resting) {
            Next::Order(Order::ReadBack) => Report::Tables(dataplane.read_back()),
            Next::Order(Order::Commit(order)) => {
                // A commit takes a tenth of the clock's millisecond.
                let start = Instant::now();
                let result = commit(&mut *dataplane, &order);
                // Chains that went out of use are deleted when there is nothing better to do.
                resting = true;
                let took = start.elapsed();
                Report::Commit { result, took }
            }
            Next::Idle => match dataplane.idle() {
                Ok(more) => {
                    resting = more;
                    continue;
                }
                Err((family, failure)) => {
                    resting = false;
                    Report::Doubt(family, failure)
                }
            },
            Next::Closed => return,
        };
        if reports.send(report).is_err() {
            return;
        }
    }
}

fn commit(dataplane: &mut dyn Dataplane, order: &Commit) -> Result<(), CommitFailure> {
    if let Some(ranges) = &order.ranges {
        dataplane.configure(ranges)?;
    }
    if order.take_over {
        dataplane.retire_kube_proxy()?;
    }
    if order.change.is_empty() && !order.take_over {
        return Ok(());
    }
    dataplane.commit(&order.change)
}

enum Next {
    Order(Order),
    Idle,
    Closed,
}

fn next(inbox: &Receiver<Order>, resting: bool) -> Next {
    if !resting {
        return inbox.recv().map_or(Next::Closed, Next::Order);
    }
    match inbox.recv_timeout(IDLE) {
        Ok(order) => Next::Order(order),
        Err(RecvTimeoutError::Timeout) => Next::Idle,
        Err(RecvTimeoutError::Disconnected) => Next::Closed,
    }
}
