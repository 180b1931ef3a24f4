//! Chromium without a window, driven over the pipes of its DevTools protocol: one page at a time, with the media and
//! colours that a test chooses.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use serde_json::{Value, json};

/// Whether there is one.
pub(crate) fn is_installed() -> bool {
    Command::new("chromium").arg("--version").output().is_ok()
}

/// A browser with one page; ended when dropped.
pub(crate) struct Browser {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
    sent: u64,
    session: Option<String>,
}

impl Drop for Browser {
    fn drop(&mut self) {
        // One that is killed goes on writing in its directory, which the test is about to remove.
        let close = json!({"id": self.sent + 1, "method": "Browser.close"}).to_string();
        let _ = self.to.write_all(&[close.as_bytes(), b"\0"].concat());
        let _ = std::io::copy(&mut self.from, &mut std::io::sink());
        let _ = self.child.wait();
    }
}

impl Browser {
    /// Starts it, with its files in this directory.
    pub(crate) fn start(dir: &Path) -> Self {
        let profile = format!("--user-data-dir={}", dir.join("profile").display());
        let mut child = Command::new("sh")
            .args(["-c", r#"exec "$@" 3<&0 4>&1 </dev/null >/dev/null 2>&1"#])
            .args(["sh", "timeout", "300", "chromium", "--headless"])
            .args(["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"])
            .args(["--no-first-run", "--disable-crash-reporter"])
            .args([&profile, "--remote-debugging-pipe", "about:blank"])
            .env("HOME", dir)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut browser = Self {
            to: child.stdin.take().unwrap(),
            from: BufReader::new(child.stdout.take().unwrap()),
            child,
            sent: 0,
            session: None,
        };
        let page = browser.call("Target.createTarget", json!({"url": "about:blank"}));
        let page = json!({"targetId": page["targetId"], "flatten": true});
        let session = browser.call("Target.attachToTarget", page);
        browser.session = Some(session["sessionId"].as_str().unwrap().to_owned());
        browser
    }

    /// Has one method of the protocol executed, and waits for its result.
    #[track_caller]
    pub(crate) fn call(&mut self, method: &str, params: Value) -> Value {
        self.sent += 1;
        let mut message = json!({"id": self.sent, "method": method, "params": params});
        if let Some(session) = &self.session {
            message["sessionId"] = json!(session);
        }
        let message = [message.to_string().as_bytes(), b"\0"].concat();
        self.to.write_all(&message).unwrap();
        loop {
            let mut answer = Vec::new();
            self.from.read_until(0, &mut answer).unwrap();
            assert_eq!(answer.pop(), Some(0), "the browser has ended");
            let mut answer: Value = serde_json::from_slice(&answer).unwrap();
            if answer["id"] == self.sent {
                assert!(answer["error"].is_null(), "{method}: {answer}");
                return answer["result"].take();
            }
        }
    }

    /// Shows for this medium (`screen`, `print`) in these colours (`light`, `dark`).
    pub(crate) fn emulate(&mut self, medium: &str, colours: &str) {
        let features = json!([{"name": "prefers-color-scheme", "value": colours}]);
        let media = json!({"media": medium, "features": features});
        self.call("Emulation.setEmulatedMedia", media);
    }

    /// Gives the page this width, in pixels.
    pub(crate) fn resize(&mut self, width: u32) {
        let size = json!({"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": false});
        self.call("Emulation.setDeviceMetricsOverride", size);
    }

    /// Presses a key on the element that has the focus.
    pub(crate) fn press(&mut self, key: &str) {
        let (text, code) = match key {
            "Enter" => ("\r", 13),
            // Named keys, such as `ArrowLeft`, insert no text.
            _ if key.len() > 1 => ("", 0),
            _ => (key, 0),
        };
        let pressed =
            json!({"type": "keyDown", "key": key, "text": text, "windowsVirtualKeyCode": code});
        self.call("Input.dispatchKeyEvent", pressed);
        self.call(
            "Input.dispatchKeyEvent",
            json!({"type": "keyUp", "key": key}),
        );
    }

    /// Moves a finger from one place to another, both as shares of the width of the element that this selector finds.
    pub(crate) fn swipe(&mut self, selector: &str, from: f64, to: f64) {
        self.call(
            "Emulation.setTouchEmulationEnabled",
            json!({"enabled": true}),
        );
        let place = format!(
            "(() => {{ const e = document.querySelector('{selector}'); e.scrollIntoView(); const box = e.getBoundingClientRect();
                return [box.left, box.top, box.width]; }})()"
        );
        let place: [f64; 3] = serde_json::from_value(self.value(&place)).unwrap();
        let [left, top, width] = place;
        let point = |share: f64| json!([{"x": left + width * share, "y": top + 10.0}]);
        let middle = f64::midpoint(from, to);
        for (event, points) in [
            ("touchStart", point(from)),
            ("touchMove", point(middle)),
            ("touchMove", point(to)),
            ("touchEnd", json!([])),
        ] {
            let event = json!({"type": event, "touchPoints": points});
            self.call("Input.dispatchTouchEvent", event);
        }
    }

    /// Elements with a role of assistive technology (`table`, `button`) and their names.
    pub(crate) fn named_roles(&mut self) -> Vec<(String, String)> {
        let tree = self.call("Accessibility.getFullAXTree", json!({}));
        let nodes = tree["nodes"].as_array().unwrap().iter();
        let text = |value: &Value| value["value"].as_str().unwrap_or_default().to_owned();
        nodes
            .map(|node| (text(&node["role"]), text(&node["name"])))
            .collect()
    }

    /// Goes to a file of a report, and returns how many milliseconds it took until its script had come to its end.
    #[track_caller]
    pub(crate) fn show(&mut self, page: &Path) -> f64 {
        let url = format!("file://{}", page.display());
        let shown = self.call("Page.navigate", json!({"url": url}));
        assert!(shown["errorText"].is_null(), "{shown}");
        let ready = "new Promise(done => { const look = () => document.documentElement?.dataset.ready \
            ? done(performance.now()) : setTimeout(look, 5); look(); })";
        self.value(ready).as_f64().unwrap()
    }

    /// The value of an expression in the page.
    #[track_caller]
    pub(crate) fn value(&mut self, expression: &str) -> Value {
        let request =
            json!({"expression": expression, "returnByValue": true, "awaitPromise": true});
        let mut answer = self.call("Runtime.evaluate", request);
        assert!(
            answer["exceptionDetails"].is_null(),
            "{expression}: {answer}"
        );
        answer["result"]["value"].take()
    }

    /// A computed property of the element that this selector finds.
    #[track_caller]
    pub(crate) fn style(&mut self, selector: &str, property: &str) -> String {
        let expression =
            format!("getComputedStyle(document.querySelector('{selector}'))['{property}']");
        self.value(&expression).as_str().unwrap().to_owned()
    }

    /// The text of the element that this selector finds, also where it is not in view.
    #[track_caller]
    pub(crate) fn text(&mut self, selector: &str) -> String {
        let expression = format!("document.querySelector('{selector}').textContent");
        self.value(&expression).as_str().unwrap().to_owned()
    }

    /// The page as it is printed: a PDF, in base64.
    pub(crate) fn print(&mut self) -> String {
        let mut answer = self.call("Page.printToPDF", json!({}));
        match answer["data"].take() {
            Value::String(pdf) => pdf,
            other => panic!("no PDF: {other}"),
        }
    }
}
