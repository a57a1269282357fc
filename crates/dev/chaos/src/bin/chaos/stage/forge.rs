//! Forged copies of requests, published by an attacker that can read a queue but has no key.

use anyhow::{Context, Result, ensure};
use nsbridge_protocol::topology::model_queue;
use nsbridge_queue::{AmqpBroker, Broker, Confirmation, Message};

use crate::follow::client_was_gone;
use crate::journal::{What, from_hex};
use crate::watched::nobodys_queue;

use super::{STEP_TIMEOUT, Stage};

impl Stage {
    /// Publishes the sealed bytes of request `n` once more, with a reply queue that never existed.
    pub(crate) fn forge_reply_to(&mut self, n: usize) -> Result<()> {
        let (request, frame) = self.follow.wait("the request's bytes", STEP_TIMEOUT, |lines| {
            let request = lines.iter().find_map(|line| match &line.what {
                What::Asked { n: other, request } if *other == n => Some(request),
                _ => None,
            })?;
            lines.iter().find_map(|line| match &line.what {
                What::Enqueue { request: other, frame } if other == request => {
                    Some((request.clone(), frame.clone()))
                }
                _ => None,
            })
        })?;
        let mut message = Message::new(from_hex(&frame).context("what was enqueued is no hex")?);
        let properties = &mut message.properties;
        properties.message_id = Some(request.clone());
        properties.correlation_id = Some(request);
        properties.reply_to = Some(nobodys_queue());
        properties.persistent = true;
        properties.expiration = Some(STEP_TIMEOUT);
        let (url, queue) = (self.url.clone(), model_queue(&self.model));
        self.fault("forged reply_to", &format!("request {n}"))?;
        self.runtime.block_on(async {
            let connection = AmqpBroker::new(&url)?.connect("forger").await?;
            let publisher = connection.publisher().await?;
            let confirmed = publisher.publish("", &queue, message).await?.await?;
            ensure!(confirmed == Confirmation::Ack, "the forged copy was not taken");
            connection.close().await;
            Ok(())
        })
    }

    /// Waits until this many runs of request `n` have ended because no client read their reply.
    pub(crate) fn until_ran_without_client(&mut self, n: usize, times: usize) -> Result<()> {
        self.until(&format!("a run of request {n} without a client to end"), |lines| {
            let of = |what: &What| match what {
                What::End { n: other, how, .. } => *other == n && client_was_gone(how),
                _ => false,
            };
            lines.iter().filter(|line| of(&line.what)).count() >= times
        })
    }
}
