//! Scored prompts through the queue, from one worker to the next.

use serde_json::{Value, json};

use crate::place::{Place, Process};

/// Returns an input whose prompt of token ids is echoed with its log-probabilities.
fn scored(max_tokens: usize) -> Value {
    let tokens: Vec<u32> = (0..300).map(|at| 10 + at * at % 500).collect();
    json!({
        "prompt_token_ids": tokens, "echo": true, "prompt_logprobs": 20, "logprobs": true,
        "top_logprobs": 20, "max_tokens": max_tokens, "temperature": 0.8, "ignore_eos": true
    })
}

fn ask(place: &Place, input: &Value) -> Process {
    Process(place.ask(&["--seed", "7", "--input", &input.to_string()]).spawn().unwrap())
}

fn lines(asking: &mut Process) -> Vec<String> {
    asking.lines().map(Result::unwrap).collect()
}

#[test]
fn a_prompt_is_scored_through_the_queue_and_a_killed_worker_leaves_no_seam() {
    let place = Place::new();
    let mut worker = place.worker();
    let input = scored(150);
    let whole = lines(&mut ask(&place, &input));
    assert_eq!(whole.len(), 450);
    let prompt: Vec<Value> =
        whole[..300].iter().map(|line| serde_json::from_str(line).unwrap()).collect();
    let ids = input["prompt_token_ids"].as_array().unwrap();
    assert!(prompt.iter().zip(ids).all(|(piece, id)| piece["token"] == *id));
    assert!(prompt.iter().all(|piece| piece["prompt"] == true));
    let scored = |piece: &Value| piece["rank"].is_u64() && piece["logprob"].is_f64();
    assert!(!scored(&prompt[0]) && prompt[1..].iter().all(scored));
    // The next worker cuts the prompt into other chunks, on two ranks.
    let other = [
        ("NSBRIDGE_HANDLER__TENSOR_PARALLEL_DEGREE", "2".to_owned()),
        ("NSBRIDGE_HANDLER__MAX_NUM_BATCHED_TOKENS", "40".to_owned()),
    ];
    let alone = lines(&mut ask(&place, &self::scored(0)));
    assert_eq!(alone, whole[..300]);
    let was_seen = (0..8).any(|attempt| {
        let mut asking = ask(&place, &input);
        let mut coming = asking.lines();
        let mut read = vec![coming.next().unwrap().unwrap()];
        worker.signal("-KILL");
        worker.code();
        let in_the_middle = place.has_request_again();
        worker = if attempt % 2 == 0 { place.worker_in(&other) } else { place.worker() };
        read.extend(coming.map(Result::unwrap));
        assert_eq!(asking.code(), Some(0));
        assert_eq!(read, whole, "each piece once, in order, with the same numbers");
        in_the_middle
    });
    assert!(was_seen, "no worker was killed in mid-reply");
}
