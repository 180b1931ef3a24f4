use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::*;

async fn listener() -> (TcpListener, String) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    (listener, address)
}

#[tokio::test]
async fn task_of_job_is_found_among_other_connections() {
    let (listener, address) = listener().await;
    let caller = TaskCaller::new().unwrap();
    let task = Task::new(&caller.fingerprint()).unwrap();
    // One that is silent, one that sends garbage, and one with another cookie.
    let silent = TcpStream::connect(&address).await.unwrap();
    let mut garbage = TcpStream::connect(&address).await.unwrap();
    garbage.write_all(&[0; 64]).await.unwrap();
    let (found, own) = tokio::join!(admitted(&listener, &caller, b"cookie"), async {
        let mut other = task
            .connect(&address, b"cookie of another job")
            .await
            .unwrap();
        assert!(
            other.read(&mut [0]).await.is_err(),
            "the connection is dropped"
        );
        task.connect(&address, b"cookie").await.unwrap()
    });
    let (mut found, mut own) = (found.unwrap(), own);
    own.write_all(b"to the caller").await.unwrap();
    own.shutdown().await.unwrap();
    let mut received = Vec::new();
    found.read_to_end(&mut received).await.unwrap();
    assert_eq!(received, b"to the caller");
    drop(silent);
}

#[tokio::test]
async fn task_proves_nothing_to_other_caller() {
    let (listener, address) = listener().await;
    let (caller, other) = (TaskCaller::new().unwrap(), TaskCaller::new().unwrap());
    let task = Task::new(&caller.fingerprint()).unwrap();
    let accepting = async {
        let (stream, _) = listener.accept().await.unwrap();
        other.admit(stream, b"cookie").await
    };
    let (admitted, connected) = tokio::join!(accepting, task.connect(&address, b"cookie"));
    assert!(admitted.is_err());
    assert!(connected.is_err());
}

#[tokio::test]
async fn attempts_are_limited() {
    let (listener, address) = listener().await;
    let caller = TaskCaller::new().unwrap();
    let strangers = async {
        for _ in 0..ATTEMPTS {
            drop(TcpStream::connect(&address).await.unwrap());
        }
    };
    let (found, ()) = tokio::join!(admitted(&listener, &caller, b"cookie"), strangers);
    assert!(found.is_none());
}

#[test]
fn fingerprint_is_sha_256() {
    assert!(Task::new("").is_err());
    assert!(Task::new("00").is_err());
    assert!(Task::new(&"0".repeat(64)).is_ok());
    assert!(Task::new(&"g".repeat(64)).is_err());
}
