//! The attribute with which tests register at the harness of `wireup-test-support`.

use proc_macro::{TokenStream, TokenTree};

/// Registers a test. Stands where the compiler's own `#[test]` would, also before an `async fn`.
#[proc_macro_attribute]
pub fn test(_options: TokenStream, item: TokenStream) -> TokenStream {
    let mut is_async = false;
    let mut name = None;
    let mut words = item.clone().into_iter();
    while let Some(token) = words.next() {
        let TokenTree::Ident(word) = token else {
            continue;
        };
        match word.to_string().as_str() {
            "async" => is_async = true,
            "fn" => {
                name = words.next();
                break;
            }
            _ => {}
        }
    }
    let Some(name) = name else {
        return refused("a test is a function");
    };
    let run = if is_async {
        format!("|| ::wireup_test_support::block_on({name}())")
    } else {
        name.to_string()
    };
    let registration = format!(
        "::wireup_test_support::inventory::submit! {{
            ::wireup_test_support::Case {{
                module: module_path!(), name: \"{name}\", run: {run},
            }}
        }}"
    );
    let mut output = item;
    output.extend(registration.parse::<TokenStream>());
    output
}

fn refused(why: &str) -> TokenStream {
    let error = format!("compile_error!({why:?});");
    error.parse().unwrap_or_default()
}
