//! Connections over TLS, to a RabbitMQ whose certificate authority is private and which asks clients for
//! certificates.

use std::fs;
use std::net::TcpListener;

use nsbridge_queue::{AmqpBroker, Broker, Error};
use nsbridge_testkit::Rabbit;
use nsbridge_testkit::rabbit::{Authority, Config};
use tempfile::TempDir;

/// User of the broker that the client's certificate names.
const USER: &str = "tale-worker";

/// Broker with TLS, and the files of its clients.
struct Place {
    _rabbit: Rabbit,
    port: u16,
    files: TempDir,
}

impl Place {
    fn start() -> Self {
        let authority = Authority::new().unwrap();
        let (client, client_key) = authority.issue(USER).unwrap();
        let files = tempfile::tempdir().unwrap();
        let write = |name: &str, text: String| fs::write(files.path().join(name), text).unwrap();
        write("ca.pem", authority.pem());
        write("client.pem", client.pem());
        write("client.key", client_key.serialize_pem());

        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let options = ["{verify, verify_peer}", "{fail_if_no_peer_cert, true}"];
        let listener = authority.listener(port, &options).unwrap();
        let advanced = format!(
            "[{{rabbit, [{listener}, {{ssl_cert_login_from, common_name}}, \
             {{auth_mechanisms, ['EXTERNAL', 'PLAIN']}}]}}]."
        );
        let plugins = vec!["rabbitmq_auth_mechanism_ssl".to_owned()];
        let config = Config { advanced: Some(advanced), plugins, ..Config::default() };
        let rabbit = Rabbit::with(&config).unwrap();
        rabbit.ctl(&["add_user", USER, "unused"]).unwrap();
        rabbit.ctl(&["set_permissions", "-p", "/", USER, ".*", ".*", ".*"]).unwrap();
        Self { _rabbit: rabbit, port, files }
    }

    fn file(&self, name: &str) -> String {
        self.files.path().join(name).display().to_string()
    }

    async fn connect(&self, login: &str, parameters: &str) -> Result<(), Error> {
        let url = format!("amqps://{login}localhost:{}/%2f?{parameters}", self.port);
        AmqpBroker::new(&url)?.connect("tls").await.map(drop)
    }
}

#[tokio::test]
async fn a_broker_of_a_private_authority_is_reached_with_certificates_alone() {
    let place = Place::start();
    let ca = format!("cacertfile={}", place.file("ca.pem"));
    let client =
        format!("certfile={}&keyfile={}", place.file("client.pem"), place.file("client.key"));

    // The certificate is the login.
    place.connect("", &format!("{ca}&{client}&auth_mechanism=external")).await.unwrap();
    place.connect("guest:guest@", &format!("{ca}&{client}")).await.unwrap();

    let unknown = place.connect("guest:guest@", &client).await.unwrap_err();
    let said = nsbridge_base::chain(&unknown);
    assert!(said.contains("UnknownIssuer") && said.contains("`ca_file` of [broker]"), "{said}");

    let anonymous = place.connect("guest:guest@", &ca).await.unwrap_err();
    assert!(anonymous.is_retryable(), "{anonymous:?}");
    let said = nsbridge_base::chain(&anonymous);
    assert!(said.contains("`cert_file` and `key_file` of [broker]"), "{said}");

    let other = format!("amqps://guest:guest@127.0.0.1:{}/%2f?{ca}&{client}", place.port);
    let other = AmqpBroker::new(&other).unwrap().connect("tls").await.map(drop).unwrap_err();
    let said = nsbridge_base::chain(&other);
    assert!(said.contains("a name that is in the broker's certificate"), "{said}");

    let plain = nsbridge_testkit::amqp_url().replace("amqp://", "amqps://");
    let plain = AmqpBroker::new(&plain).unwrap().connect("tls").await.map(drop).unwrap_err();
    let said = nsbridge_base::chain(&plain);
    assert!(said.contains("nothing there speaks TLS"), "{said}");

    // A renewed certificate is read for the next connection; a file that is gone is named.
    let url = format!("amqps://localhost:{}/%2f?{ca}&{client}&auth_mechanism=external", place.port);
    let broker = AmqpBroker::new(&url).unwrap();
    let key = place.file("client.key");
    let good = fs::read(&key).unwrap();
    fs::remove_file(&key).unwrap();
    let gone = broker.connect("tls").await.map(drop).unwrap_err();
    assert!(nsbridge_base::chain(&gone).contains("client.key"), "{gone:?}");
    fs::write(&key, good).unwrap();
    broker.connect("tls").await.unwrap();
}
