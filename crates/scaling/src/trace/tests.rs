//! Forms of text, wrong lines, and the generator.

use proptest::prelude::{any, prop, proptest};

use super::{Day, Lengths, Request, Trace};

/// Two requests, 0.5 s apart.
fn expected(start_s: f64) -> Vec<Request> {
    vec![
        Request { at_s: start_s, input_tokens: 374, output_tokens: 44 },
        Request { at_s: start_s + 0.5, input_tokens: 396, output_tokens: 109 },
    ]
}

#[track_caller]
fn check(text: &str, start_s: f64) {
    let trace = Trace::read(text.as_bytes()).unwrap();
    assert_eq!(trace.requests(), expected(start_s));
    assert_eq!(trace.duration_s(), start_s + 0.5);
}

#[test]
fn all_four_forms_are_read_in_any_order() {
    check(
        "\u{feff}TIMESTAMP,ContextTokens,GeneratedTokens\r\n2023-11-16 18:15:47.1805900,396,109\r\n\
         2023-11-16 18:15:46.6805900,374,44",
        0.0,
    );
    check("at_s,input_tokens,output_tokens\n10, 374,44\n\n10.5,396,109\n", 10.0);
    check(
        "{\"timestamp\": 2500, \"input_length\": 396, \"output_length\": 109, \"hash_ids\": [0]}\n\
         {\"timestamp\": 2000, \"input_length\": 374, \"output_length\": 44}\n",
        2.0,
    );
    check(
        "{\"at_s\":0,\"input_tokens\":374,\"output_tokens\":44}\n\
         {\"at_s\":0.5,\"input_tokens\":396,\"output_tokens\":109}\n",
        0.0,
    );
}

#[test]
fn a_trace_may_have_no_request() {
    let trace = Trace::read("at_s,input_tokens,output_tokens\n".as_bytes()).unwrap();
    assert_eq!((trace.requests().len(), trace.mean_tokens()), (0, (0.0, 0.0)));
}

#[track_caller]
fn check_wrong(text: &str, said: &str) {
    let error = Trace::read(text.as_bytes()).unwrap_err().to_string();
    assert!(error.starts_with(said), "{error}");
}

#[test]
fn a_wrong_line_is_named_with_what_is_expected() {
    let seconds = |line: &str| format!("at_s,input_tokens,output_tokens\n0,1,1\n{line}\n");
    check_wrong("", "line 1: there is no line with text; expected one of the headers");
    check_wrong("\n\nname,count\n", "line 3: it is no header and no JSON object; expected one of");
    check_wrong("{\"a\":1}", "line 1: it has neither `timestamp` nor `at_s`; expected one of");
    check_wrong(&seconds("1,2"), "line 3: it has 2 columns; expected three columns: seconds");
    check_wrong(&seconds("x,2,3"), "line 3: \"x\" is no number; expected three columns");
    check_wrong(&seconds("-1,2,3"), "line 3: -1 s is no time from 0 to");
    check_wrong(&seconds("NaN,2,3"), "line 3: NaN s is no time");
    check_wrong(&seconds("1,2,-3"), "line 3: \"-3\" is no number of tokens; expected three");
    check_wrong(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-31 18:15:46.6,1,1",
        "line 2: \"2023-11-31 18:15:46.6\" is no time; expected three columns, such as `2023",
    );
    check_wrong(
        "{\"timestamp\":0,\"input_length\":1,\"output_length\":1}\n{\"timestamp\":0}",
        "line 2: missing field `input_length` at line 1 column 15; expected an object such as {\"tim",
    );
    check_wrong(
        "{\"at_s\":0,\"input_tokens\":1,\"output_tokens\":1,\"more\":1}",
        "line 1: unknown field `more`",
    );
    let text = [b"at_s,input_tokens,output_tokens\n".as_slice(), &[0xff, b'\n']].concat();
    let error = Trace::read(text.as_slice()).unwrap_err().to_string();
    assert_eq!(error, "cannot read line 2 as text");
}

#[test]
fn a_time_beyond_a_year_is_refused() {
    let text = "at_s,input_tokens,output_tokens\n40000000,1,1";
    let error = Trace::read(text.as_bytes()).unwrap_err().to_string();
    assert_eq!(
        error,
        "at_s of a request is 40000000: set it to a number of seconds from 0 to 366 days"
    );
}

/// An hour with a burst.
fn hour() -> Day {
    Day { duration_s: 3600.0, bursts: 1, ..Day::default() }
}

#[test]
fn a_seed_gives_one_trace_on_every_machine() {
    let trace = hour().trace().unwrap();
    let first: Vec<_> = trace.requests().iter().take(3).collect();
    let wanted = [
        Request { at_s: 9.968408, input_tokens: 1298, output_tokens: 19 },
        Request { at_s: 14.390564, input_tokens: 297, output_tokens: 73 },
        Request { at_s: 17.983557, input_tokens: 680, output_tokens: 354 },
    ];
    assert_eq!(first, wanted.iter().collect::<Vec<_>>());
    let sum: u64 = trace.requests().iter().map(|it| u64::from(it.output_tokens)).sum();
    assert_eq!((trace.requests().len(), sum), (1157, 239_976));
    assert_ne!(Day { seed: 2, ..hour() }.trace().unwrap(), trace);
}

#[test]
fn the_rate_follows_the_day_and_its_bursts() {
    let day = Day { requests_per_s: 0.3, bursts: 0, ..Day::default() };
    let within = |trace: &Trace, from_h: f64, to_h: f64| {
        let hours = trace.requests().iter().map(|it| it.at_s / 3600.0);
        hours.filter(|hour| (from_h..to_h).contains(hour)).count() as f64
    };
    let calm = day.trace().unwrap();
    // Four standard errors of a Poisson count of 25,920.
    assert!((calm.requests().len() as f64 - 25_920.0).abs() < 4.0 * 161.0);
    let (busiest, calmest) = (within(&calm, 13.0, 15.0), within(&calm, 1.0, 3.0));
    let ratio = busiest / calmest;
    assert!((7.0..11.0).contains(&ratio), "{ratio} instead of 1.8 / 0.2");
    let burst = Day { bursts: 1, burst_s: 1e9, burst_factor: 4.0, ..day }.trace().unwrap();
    let last = within(&burst, 23.0, 24.0) / within(&calm, 23.0, 24.0);
    assert!((3.0..5.0).contains(&last), "{last}");
}

#[test]
fn lengths_have_their_median_and_at_least_one_token() {
    let lengths = Lengths { median: 130.0, sigma: 1.0 };
    let day = Day { output: lengths, input: Lengths { median: 0.1, sigma: 0.0 }, ..hour() };
    let trace = day.trace().unwrap();
    let below = trace.requests().iter().filter(|it| it.output_tokens < 130).count() as f64;
    assert!((below / trace.requests().len() as f64 - 0.5).abs() < 0.08);
    assert!(trace.requests().iter().all(|it| it.input_tokens == 1));
}

#[test]
fn options_that_cannot_be_used_are_refused_in_a_sentence() {
    let check = |change: &dyn Fn(&mut Day), said: &str| {
        let mut day = hour();
        change(&mut day);
        let error = day.trace().unwrap_err().to_string();
        assert!(error.starts_with(said), "{error}");
    };
    check(&|day| day.duration_s = f64::NAN, "duration_s is NaN: set it to a number of seconds");
    check(&|day| day.duration_s = 1e9, "duration_s is 1000000000: set it to at most 366 days");
    check(&|day| day.requests_per_s = -1.0, "requests_per_s is -1: set it to");
    check(&|day| day.requests_per_s = 1e6, "requests_per_s is 1000000: the trace may have 18");
    check(&|day| day.swing = 1.5, "swing is 1.5: set it to a share");
    check(&|day| day.busiest_hour = f64::INFINITY, "busiest_hour is inf: set it to an hour");
    check(&|day| day.bursts = 100_000, "bursts is 100000: set it to at most 10000");
    check(&|day| day.burst_s = -1.0, "burst_s is -1: set it to");
    check(&|day| day.burst_factor = 0.5, "burst_factor is 0.5: set it to");
    check(&|day| day.input.median = 0.0, "input.median is 0: set it to");
    check(&|day| day.output.sigma = 9.0, "output.sigma is 9: set it to a number from 0 to 3");
}

proptest! {
    #[test]
    fn no_text_makes_the_reader_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = Trace::read(bytes.as_slice());
    }

    #[test]
    fn no_line_makes_the_reader_panic(form in 0_usize..4, line in "[0-9.,:eE{}\"a-z_ T-]{0,60}") {
        let first = [
            "TIMESTAMP,ContextTokens,GeneratedTokens",
            "at_s,input_tokens,output_tokens",
            "{\"timestamp\":0,\"input_length\":1,\"output_length\":1}",
            "{\"at_s\":0,\"input_tokens\":1,\"output_tokens\":1}",
        ][form];
        let _ = Trace::read(format!("{first}\n{line}\n").as_bytes());
    }

    #[test]
    fn a_trace_that_is_written_is_read_again(
        rows in prop::collection::vec((0_u64..1_000_000_000, any::<u32>(), any::<u32>()), 0..20),
    ) {
        let request = |(at, input_tokens, output_tokens)| {
            Request { at_s: at as f64 / 1e6, input_tokens, output_tokens }
        };
        let trace = Trace::new(rows.into_iter().map(request).collect(), 0.0).unwrap();
        assert_eq!(Trace::read(trace.to_csv().as_bytes()).unwrap(), trace);
    }
}
