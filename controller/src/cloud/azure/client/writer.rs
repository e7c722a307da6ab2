//! One writer per document (AZ-100 to AZ-103): whoever wants something of a load balancer or of the security group puts
//! it on the pile, and whoever's turn it is carries out the whole pile in one write. What comes while a write runs is on
//! the next pile; members wait for at most one operation.

use std::sync::{Mutex, PoisonError};

use tokio::sync::{Mutex as Right, MutexGuard, oneshot};

use crate::cloud::{Class, CloudError};
use crate::plan::Effect;

/// What became of a request.
pub(super) type Done = Result<Effect, CloudError>;

/// The pile of one document.
#[derive(Debug)]
pub(super) struct Pile<R> {
    waiting: Mutex<Vec<(R, oneshot::Sender<Done>)>>,
    turn: Right<()>,
}

impl<R> Default for Pile<R> {
    fn default() -> Self {
        Self {
            waiting: Mutex::new(Vec::new()),
            turn: Right::new(()),
        }
    }
}

/// What became of a request at its turn.
pub(super) enum Joined<'a, R> {
    /// Somebody else has carried it out.
    Answered(Done),
    /// The whole pile is to be carried out.
    Turn(Turn<'a, R>),
}

/// The right to write, with everything that waits for it.
pub(super) struct Turn<'a, R> {
    /// What is to be carried out.
    pub(super) requests: Vec<R>,
    answers: Vec<oneshot::Sender<Done>>,
    mine: oneshot::Receiver<Done>,
    _right: MutexGuard<'a, ()>,
}

impl<R> Turn<'_, R> {
    /// Gives each request its answer, in their order; our own comes back.
    pub(super) fn finish(mut self, done: Vec<Done>) -> Done {
        for (answer, done) in self.answers.into_iter().zip(done) {
            // Whoever has gone wants no answer.
            let _ = answer.send(done);
        }
        let given_up = || {
            Err(CloudError::new(
                Class::Transient,
                "write to Azure",
                "the write was given up",
            ))
        };
        self.mine.try_recv().unwrap_or_else(|_| given_up())
    }
}

impl<R> Pile<R> {
    /// Puts a request on the pile and waits for its turn, or for its answer.
    pub(super) async fn join(&self, request: R) -> Joined<'_, R> {
        let (answer, mut mine) = oneshot::channel();
        self.pile().push((request, answer));
        let right = self.turn.lock().await;
        if let Ok(done) = mine.try_recv() {
            return Joined::Answered(done);
        }
        let (requests, answers) = std::mem::take(&mut *self.pile()).into_iter().unzip();
        Joined::Turn(Turn {
            requests,
            answers,
            mine,
            _right: right,
        })
    }

    fn pile(&self) -> std::sync::MutexGuard<'_, Vec<(R, oneshot::Sender<Done>)>> {
        // Pushing and taking cannot fail half-way.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn zi16_az100_az101_az103_what_comes_during_a_write_goes_out_in_one_more() {
        let pile = Arc::new(Pile::<u32>::default());
        let written = Arc::new(Mutex::new(Vec::new()));
        let one = |number: u32| {
            let (pile, written) = (Arc::clone(&pile), Arc::clone(&written));
            tokio::spawn(async move {
                let turn = match pile.join(number).await {
                    Joined::Answered(done) => return done,
                    Joined::Turn(turn) => turn,
                };
                written.lock().unwrap().push(turn.requests.clone());
                tokio::time::sleep(Duration::from_secs(1)).await;
                let done = |n: &u32| {
                    if n.is_multiple_of(2) {
                        Ok(Effect::Changed)
                    } else {
                        Ok(Effect::AlreadySo)
                    }
                };
                let done = turn.requests.iter().map(done).collect();
                turn.finish(done)
            })
        };
        let first = one(0);
        tokio::time::sleep(Duration::from_millis(100)).await;
        let more: Vec<_> = (1..=250).map(one).collect();
        assert_eq!(first.await.unwrap(), Ok(Effect::Changed));
        for (number, task) in more.into_iter().enumerate() {
            let expected = if number % 2 == 1 {
                Effect::Changed
            } else {
                Effect::AlreadySo
            };
            assert_eq!(task.await.unwrap(), Ok(expected), "each its own answer");
        }
        let written = written.lock().unwrap();
        let sizes: Vec<usize> = written.iter().map(Vec::len).collect();
        assert_eq!(sizes, [1, 250], "ZA-102, ZA-117");
    }
}
