import { LabIcon } from '@jupyterlab/ui-components';

/** A speech bubble with a cursor in it. */
const bubble =
  '<svg xmlns="http://www.w3.org/2000/svg" width="16" viewBox="0 0 24 24"><path class="jp-icon3" fill="#616161" ' +
  'd="M4 3h16a2 2 0 0 1 2 2v10a2 2 0 0 1-2 2h-8l-5 4.5V17H4a2 2 0 0 1-2-2V5a2 2 0 0 1 2-2zm0 2v10h5v2.4l2.6-2.4H20V5zm3 ' +
  '2.2 3.4 2.8L7 12.8 5.9 11.6 7.9 10l-2-1.6zM11.500 11.500h5v1.500h-5z"/></svg>';

export const kitIcon = new LabIcon({ name: 'kit-jupyter:chat', svgstr: bubble });
