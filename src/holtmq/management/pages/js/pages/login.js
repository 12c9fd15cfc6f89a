import { html } from "../html.js";
import { login } from "../api.js";
import { Form, Text } from "../parts.js";

export function Login({ enter }) {
  const submit = async (form) => {
    login.set(form.elements.user.value, form.elements.password.value);
    try {
      await enter();
    } catch (error) {
      login.forget();
      throw error;
    }
  };
  return html`<main class="login"><div class="panel" style=${{ width: "min(24rem, 100%)" }}>
    <div class="brand"><img src="/logo.svg" alt="" />HoltMQ</div><h1>Log in</h1>
    <${Form} label="Log in" submit=${submit}>
      <${Text} label="User" name="user" autocomplete="username" required autofocus />
      <${Text} label="Password" name="password" type="password" autocomplete="current-password" />
    <//>
  </div></main>`;
}
