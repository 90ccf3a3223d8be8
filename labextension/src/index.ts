// The plugins, each of which can be disabled alone (the mime renderer is listed in package.json).
import { JupyterFrontEndPlugin } from '@jupyterlab/application';

const plugins: JupyterFrontEndPlugin<unknown>[] = [];

export default plugins;
