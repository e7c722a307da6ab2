//! A long flow: one connection that asks again and again, to see whether anything cuts it.

use super::{
    Answer, Failure, SocketSource,
    probe::{connect, echo, greeting},
};
use onehop_core::time::Time;
use onehop_runtime::clock::Clock;
use std::{net::SocketAddr, time::Duration};
use tokio::{sync::watch, task::JoinHandle};

/// A connection that is kept busy until it is stopped or cut.
#[derive(Debug)]
#[must_use = "a flow that is not ended tells nothing"]
pub struct LongFlow {
    stop: watch::Sender<bool>,
    task: JoinHandle<StreamEnd>,
    /// Who answered first; with a flow that is never cut, who answers always.
    pub first: Answer,
}

/// How a long flow ended.
#[derive(Clone, Debug)]
pub struct StreamEnd {
    /// Answers received.
    pub answers: u64,
    /// When and how it was cut; none if it was stopped by us.
    pub cut: Option<(Time, Failure)>,
}

impl LongFlow {
    /// Connects and asks every `every`.
    pub async fn open(
        sockets: &SocketSource,
        to: SocketAddr,
        every: Duration,
        clock: Clock,
    ) -> Result<Self, Failure> {
        let (mut stream, local) = connect(sockets, to).await?;
        let first = greeting(&mut stream, local).await?;
        let (stop, mut stopped) = watch::channel(false);
        let task = tokio::spawn(async move {
            let mut answers = 1;
            loop {
                let last = tokio::select! {
                    () = clock.sleep(every) => false,
                    _ = stopped.changed() => true,
                };
                match echo(&mut stream, local).await {
                    Ok(()) => answers += 1,
                    Err(failure) => {
                        return StreamEnd {
                            answers,
                            cut: Some((clock.now(), failure)),
                        };
                    }
                }
                if last {
                    return StreamEnd { answers, cut: None };
                }
            }
        });
        Ok(Self { stop, task, first })
    }

    /// Ends the flow and says how it went. It asks once more, so that the end tells whether the flow lives now and not at
    /// its last turn.
    pub async fn end(self) -> Option<StreamEnd> {
        // A flow that was cut has ended by itself.
        let _ = self.stop.send(true);
        self.task.await.ok()
    }
}
