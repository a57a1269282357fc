//! Valid and invalid responses of servers.

use std::sync::Arc;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

use super::Pool;

/// Responses of one connection in order, one for each request. Then the server closes it.
type Script<'a> = &'a [&'a str];

/// Starts a server whose connections follow these scripts. The task returns the number of requests
/// on each connection.
async fn server(scripts: &[Script<'_>]) -> (http::Uri, JoinHandle<Vec<usize>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let uri = format!("http://{}/b/k?x=1", listener.local_addr().unwrap()).parse().unwrap();
    let owned = |script: &Script<'_>| script.iter().map(|&answer| answer.to_owned()).collect();
    let scripts: Vec<Vec<String>> = scripts.iter().map(owned).collect();
    let serve = async move {
        let mut seen = Vec::new();
        for script in scripts {
            let (mut socket, _) = listener.accept().await.unwrap();
            let mut requests = 0;
            for answer in script {
                if !request(&mut socket).await {
                    break;
                }
                requests += 1;
                // Small writes split the head across several reads.
                socket.set_nodelay(true).unwrap();
                for part in answer.as_bytes().chunks(7) {
                    // The client may close the connection once it has read enough.
                    let _ = socket.write_all(part).await;
                    tokio::task::yield_now().await;
                }
            }
            seen.push(requests);
        }
        seen
    };
    (uri, tokio::spawn(serve))
}

async fn request(socket: &mut TcpStream) -> bool {
    let mut bytes = Vec::new();
    while !bytes.ends_with(b"\r\n\r\n") {
        match socket.read_u8().await {
            Ok(byte) => bytes.push(byte),
            Err(_) => return false,
        }
    }
    true
}

const REQUEST: &[u8] = b"GET /b/k?x=1 HTTP/1.1\r\nhost: there\r\n\r\n";

/// Returns status and body, or the error message.
async fn get(pool: &Arc<Pool>, uri: &http::Uri) -> Result<(u16, String), String> {
    let work = async {
        let answer = pool.send(uri, REQUEST).await?;
        let status = answer.head.status().as_u16();
        let mut body = answer.body;
        if status >= 300 {
            return Ok((status, String::from_utf8(body.whole(64).await?).unwrap()));
        }
        let mut bytes = vec![0; body.left().unwrap_or_default() as usize];
        let mut at = 0;
        while at < bytes.len() {
            // Small buffers, as at the ends of tensors.
            let end = bytes.len().min(at + 3);
            at += body.read(&mut bytes[at..end]).await?;
        }
        Ok((status, String::from_utf8(bytes).unwrap()))
    };
    work.await.map_err(|error: std::io::Error| error.to_string())
}

async fn check(scripts: &[Script<'_>], answers: &[Result<(u16, &str), &str>], seen: &[usize]) {
    let (uri, served) = server(scripts).await;
    let pool = Arc::new(Pool::new().unwrap());
    for answer in answers {
        let got = get(&pool, &uri).await;
        match answer {
            Ok((status, body)) => assert_eq!(got, Ok((*status, (*body).to_owned()))),
            Err(why) => assert!(got.as_ref().is_err_and(|said| said.contains(why)), "{got:?}"),
        }
    }
    drop(pool);
    assert_eq!(served.await.unwrap(), seen);
}

const HELLO: &str = "HTTP/1.1 206 Partial Content\r\nContent-Length: 5\r\n\r\nhello";

#[tokio::test]
async fn a_connection_is_used_again_and_an_old_one_is_made_anew() {
    check(&[&[HELLO, HELLO]], &[Ok((206, "hello")), Ok((206, "hello"))], &[2]).await;
    // The server closed the idle connection.
    check(&[&[HELLO], &[HELLO]], &[Ok((206, "hello")), Ok((206, "hello"))], &[1, 1]).await;
}

#[tokio::test]
async fn a_connection_that_is_to_be_closed_is_not_used_again() {
    let closing = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: Close\r\n\r\nhi";
    let old = "HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\nhi";
    let more = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi there";
    for first in [closing, old, more] {
        let scripts: [Script<'_>; 2] = [&[first, "HTTP/1.1 404 Never\r\n\r\n"], &[HELLO]];
        check(&scripts, &[Ok((200, "hi")), Ok((206, "hello"))], &[1, 1]).await;
    }
}

#[tokio::test]
async fn errors_are_read_however_their_length_is_told() {
    let counted = "HTTP/1.1 403 Forbidden\r\nContent-Length: 6\r\n\r\ndenied";
    let chunked = "HTTP/1.1 503 Slow Down\r\nTransfer-Encoding: chunked\r\n\r\n\
                   4;x=1\r\nSlow\r\n5\r\n Down\r\n0\r\n\r\n";
    let closed = "HTTP/1.1 500 Oh\r\n\r\noh";
    let early = "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n";
    check(&[&[counted, HELLO]], &[Ok((403, "denied")), Ok((206, "hello"))], &[2]).await;
    for (answer, status, body) in
        [(chunked, 503, "Slow Down"), (closed, 500, "oh"), (early, 404, "")]
    {
        check(&[&[answer]], &[Ok((status, body))], &[1]).await;
    }
}

#[tokio::test]
async fn what_is_no_answer_is_an_error() {
    let endless = format!("HTTP/1.1 200 OK\r\nx: {}", "y".repeat(70_000));
    let wordy = format!("HTTP/1.1 403 No\r\nContent-Length: 65\r\n\r\n{:65}", "no");
    let cases = [
        ("", "closed without an answer"),
        ("SSH-2.0-OpenSSH_9\r\n\r\n", "invalid HTTP version"),
        ("HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello", "no sense"),
        ("HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\nhello", "no sense"),
        ("HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\nhello", "no sense"),
        ("HTTP/1.1 206 OK\r\nContent-Length: 6\r\n\r\nhello", "unexpected end of file"),
        ("HTTP/1.1 503 No\r\nTransfer-Encoding: chunked\r\n\r\nfive\r\nhello", "tells no length"),
        (&endless, "has no end"),
        (&wordy, "many words"),
        ("HTTP/1.1 503 No\r\nTransfer-Encoding: chunked\r\n\r\n41\r\nhello", "many words"),
    ];
    for (answer, why) in cases {
        check(&[&[answer]], &[Err(why)], &[1]).await;
    }
}

/// A chunk size that overflows when it is added to the earlier ones is not taken for a small one.
#[tokio::test]
async fn m6_a_chunk_of_4_gib_is_refused() {
    for size in ["ffffffffffffffff", "fffffffffffffffe", "100000000"] {
        let answer = format!(
            "HTTP/1.1 500 Oh\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n{size}\r\n{}",
            "y".repeat(200)
        );
        check(&[&[&answer]], &[Err("many words")], &[1]).await;
    }
    let told = format!("HTTP/1.1 500 Oh\r\nContent-Length: {}\r\n\r\nx", u64::MAX);
    check(&[&[&told]], &[Err("many words")], &[1]).await;
}

/// Hostile responses, truncated, repeated and modified: each one ends, in little memory.
#[tokio::test]
async fn mutated_answers_end_in_order() {
    let seeds = [
        "HTTP/1.1 500 Oh\r\nTransfer-Encoding: chunked\r\n\r\n4;x=1\r\nSlow\r\n5\r\n Down\r\n0\r\n\r\n",
        "HTTP/1.1 206 Partial Content\r\nContent-Length: 5\r\n\r\nhello",
        "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.0 404 No\r\nConnection: close\r\n\r\nnone",
    ];
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = move |below: usize| {
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        (state.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % below
    };
    for _ in 0..300 {
        let mut answer: Vec<char> = seeds[random(seeds.len())].chars().collect();
        for _ in 0..=random(3) {
            let at = random(answer.len());
            match random(4) {
                0 => answer[at] = char::from(random(128) as u8),
                1 => drop(answer.drain(at..(at + 1 + random(8)).min(answer.len()))),
                2 => drop(answer.splice(at..at, "ffffffff".chars())),
                _ => drop(answer.splice(at..at, "\r\n".chars())),
            }
            if answer.is_empty() {
                answer.push('H');
            }
        }
        let answer: String = answer.into_iter().collect();
        let (uri, served) = server(&[&[&answer]]).await;
        let pool = Arc::new(Pool::new().unwrap());
        if let Ok((status, body)) = get(&pool, &uri).await {
            assert!(status < 300 || body.len() <= 64, "{answer:?}");
        }
        drop(pool);
        served.await.unwrap();
    }
}
